package launch

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/rendezvous"
)

// gzipped is how a file begins that is taken for an archive.
const gzipped = "\x1f\x8b"

func TestANodeGetsAnArchiveThatItLacks(t *testing.T) {
	head, node := t.TempDir(), t.TempDir()
	content := append([]byte(gzipped), bytes.Repeat([]byte("layer"), 1<<18)...)
	path := filepath.Join(head, "my app.tar")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	archives, err := findArchives([]string{"site/app:1=" + path})
	if err != nil {
		t.Fatal(err)
	}
	if !archives[0].here() {
		t.Error("the file is not recognised where it is")
	}
	server, err := serveArchives(archives, rendezvous.DefaultPorts())
	if err != nil {
		t.Fatal(err)
	}
	defer server.close()
	loopback := netip.MustParseAddr("127.0.0.1")

	got, err := server.source.fetch(t.Context(), loopback, 0, archives[0], node)
	if err != nil {
		t.Fatal(err)
	}
	if copied, err := os.ReadFile(got); err != nil || !bytes.Equal(copied, content) || filepath.Base(got) != "my app.tar" {
		t.Errorf("%s: %d bytes, %v", got, len(copied), err)
	}

	shorter := archives[0]
	shorter.Size--
	if _, err := server.source.fetch(t.Context(), loopback, 0, shorter, t.TempDir()); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("a file that has changed: %v", err)
	}
	if _, err := server.source.fetch(t.Context(), loopback, 7, archives[0], t.TempDir()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("an archive that there is not: %v", err)
	}
	stranger := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if answer, err := stranger.Get(fmt.Sprintf("https://127.0.0.1:%d/0", server.source.Port)); err == nil {
		answer.Body.Close()
		t.Errorf("a stranger gets %s", answer.Status)
	}
	other, err := serveArchives(archives, rendezvous.DefaultPorts())
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	foreign := other.source
	foreign.Port = server.source.Port
	if _, err := foreign.fetch(t.Context(), loopback, 0, archives[0], t.TempDir()); err == nil {
		t.Error("another run's node gets the archive")
	}
}

func TestAnArchiveIsHereOnlyWhereItIsTheSame(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(path, []byte(gzipped+"one"), 0o600); err != nil {
		t.Fatal(err)
	}
	archives, err := findArchives([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	same := archives[0]
	longer, later, absent := same, same, same
	longer.Size++
	later.Modified = later.Modified.Add(time.Nanosecond)
	absent.Path += "x"
	for name, test := range map[string]struct {
		archive archive
		want    bool
	}{"same": {same, true}, "longer": {longer, false}, "later": {later, false}, "absent": {absent, false}} {
		if got := test.archive.here(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if _, err := findArchives([]string{filepath.Dir(path)}); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
	for _, content := range []string{"", "FROM busybox\n", strings.Repeat("x", 4096)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := findArchives([]string{path}); err == nil || !strings.Contains(err.Error(), "is no tar archive") {
			t.Errorf("a file with %.10q...: %v", content, err)
		}
	}
}
