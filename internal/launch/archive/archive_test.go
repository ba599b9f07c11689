package archive

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/job/rendezvous"
)

// gzipped is the beginning of a file that is accepted as an archive.
const gzipped = "\x1f\x8b"

func TestNodeFetchesMissingArchive(t *testing.T) {
	head, node := t.TempDir(), t.TempDir()
	content := append([]byte(gzipped), bytes.Repeat([]byte("layer"), 1<<18)...)
	path := filepath.Join(head, "my app.tar")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	archives, err := Find([]string{"site/app:1=" + path})
	if err != nil {
		t.Fatal(err)
	}
	if !archives[0].Here() {
		t.Error("the file is not recognised where it is")
	}
	server, err := Serve(archives, rendezvous.DefaultPorts())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	loopback := netip.MustParseAddr("127.0.0.1")

	fetch := func(source Source, i int, a Archive, dir string) (string, error) {
		node := NewRelay(source, loopback, rendezvous.DefaultPorts())
		defer node.Close()
		return node.fetch(t.Context(), i, a, dir)
	}
	got, err := fetch(server.Source, 0, archives[0], node)
	if err != nil {
		t.Fatal(err)
	}
	if copied, err := os.ReadFile(got); err != nil || !bytes.Equal(copied, content) || filepath.Base(got) != "my app.tar" {
		t.Errorf("%s: %d bytes, %v", got, len(copied), err)
	}

	shorter := archives[0]
	shorter.Size--
	if _, err := fetch(server.Source, 0, shorter, t.TempDir()); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Errorf("a file that has changed: %v", err)
	}
	if _, err := fetch(server.Source, 7, archives[0], t.TempDir()); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("an archive that there is not: %v", err)
	}
	unknown := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	if answer, err := unknown.Get(fmt.Sprintf("https://127.0.0.1:%d/0?from=0", server.Source.Port)); err == nil {
		answer.Body.Close()
		t.Errorf("a client without a certificate gets %s", answer.Status)
	}
	other, err := Serve(archives, rendezvous.DefaultPorts())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	foreign := other.Source
	foreign.Port = server.Source.Port
	if _, err := fetch(foreign, 0, archives[0], t.TempDir()); err == nil {
		t.Error("another run's node gets the archive")
	}
}

// serveOne serves an archive of random bytes.
func serveOne(t *testing.T, size int) (*Server, []byte) {
	t.Helper()
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	path := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	server, err := Serve([]Archive{{Path: path, Size: int64(size)}}, rendezvous.DefaultPorts())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server, content
}

// Many nodes ask at once. The head sends the archive to only two of them.
func TestNodesRelayArchive(t *testing.T) {
	server, content := serveOne(t, 8<<20)
	var copies sync.WaitGroup
	for range 7 {
		node := NewRelay(server.Source, netip.MustParseAddr("127.0.0.1"), rendezvous.DefaultPorts())
		t.Cleanup(node.Close)
		copies.Go(func() {
			path, err := node.fetch(t.Context(), 0, server.archives[0], t.TempDir())
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	copies.Wait()
	if len(server.relays[0]) != 7 {
		t.Errorf("%d nodes have asked", len(server.relays[0]))
	}
	if server.promised.Load() != 2*int64(len(content)) {
		t.Errorf("the head sent %d bytes, want two copies of %d", server.promised.Load(), len(content))
	}
}

// If all ports are taken, a node passes nothing on but receives the archive.
func TestNodeWithoutPortFetchesArchive(t *testing.T) {
	server, content := serveOne(t, 1000)
	node := NewRelay(server.Source, netip.MustParseAddr("127.0.0.1"), rendezvous.PortRange{First: server.Source.Port, Last: server.Source.Port})
	t.Cleanup(node.Close)
	path, err := node.fetch(t.Context(), 0, server.archives[0], t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) || len(server.relays[0]) != 0 {
		t.Errorf("%d bytes, %v; it passes on: %v", len(got), err, server.relays[0])
	}
}

// The head sends the bytes that another node does not, whether that node is gone
// from the beginning or fails in the middle.
func TestRelayingNodeIsLost(t *testing.T) {
	server, content := serveOne(t, 1<<20)
	loopback := netip.MustParseAddr("127.0.0.1")
	half := NewRelay(server.Source, loopback, rendezvous.DefaultPorts())
	if err := half.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(half.Close)
	half.copies[0] = &growing{path: server.archives[0].Path, size: int64(len(content)), received: int64(len(content)) / 2, ended: true}
	for name, test := range map[string]struct {
		port uint16
		want int
	}{"gone": {1, len(content)}, "ends": {half.port, len(content) / 2}} {
		giver := netip.AddrPortFrom(loopback, test.port)
		server.relays[0] = []netip.AddrPort{giver, giver}
		server.promised.Store(0)
		node := NewRelay(server.Source, loopback, rendezvous.DefaultPorts())
		path, err := node.fetch(t.Context(), 0, server.archives[0], t.TempDir())
		node.Close()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) || server.promised.Load() != int64(test.want) {
			t.Errorf("%s: %d bytes, %v; the head sent %d, want %d", name, len(got), err, server.promised.Load(), test.want)
		}
	}
}

func TestArchiveIsLocalOnlyIfIdentical(t *testing.T) {
	path := filepath.Join(t.TempDir(), "app.tar")
	if err := os.WriteFile(path, []byte(gzipped+"one"), 0o600); err != nil {
		t.Fatal(err)
	}
	archives, err := Find([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	same := archives[0]
	longer, later, absent := same, same, same
	longer.Size++
	later.Modified = later.Modified.Add(time.Nanosecond)
	absent.Path += "x"
	for name, test := range map[string]struct {
		archive Archive
		want    bool
	}{"same": {same, true}, "longer": {longer, false}, "later": {later, false}, "absent": {absent, false}} {
		if got := test.archive.Here(); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	if _, err := Find([]string{filepath.Dir(path)}); err == nil || !strings.Contains(err.Error(), "is a folder without an unpacked image") {
		t.Errorf("a directory: %v", err)
	}
	// A folder with an unpacked image is used in place.
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "usr"), 0o755); err != nil {
		t.Fatal(err)
	}
	if found, err := Find([]string{"a:1=" + root}); err != nil || !found[0].Root || !found[0].Here() {
		t.Errorf("an unpacked root: %+v, %v", found, err)
	}
	// So is a folder with an OCI layout, if it is the same.
	layout := t.TempDir()
	index := filepath.Join(layout, "index.json")
	if err := errors.Join(os.WriteFile(filepath.Join(layout, "oci-layout"), nil, 0o600), os.Mkdir(filepath.Join(layout, "blobs"), 0o755)); err != nil {
		t.Fatal(err)
	}
	if _, err := Find([]string{layout}); err == nil || !strings.Contains(err.Error(), "index.json: no such file") {
		t.Errorf("a layout without an index: %v", err)
	}
	if err := os.WriteFile(index, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	laid, err := Find([]string{layout})
	if err != nil || !laid[0].Root || !laid[0].Here() {
		t.Fatalf("a layout: %+v, %v", laid, err)
	}
	if err := os.WriteFile(index, []byte("{ }"), 0o600); err != nil {
		t.Fatal(err)
	}
	if laid[0].Here() {
		t.Error("another layout in its place is taken for it")
	}
	gone := Archive{Path: filepath.Join(root, "gone"), Root: true}
	if _, err := Readable(t.Context(), 0, gone, &Relay{}, Places{Passing: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "this node does not have it") {
		t.Errorf("a root that is not here: %v", err)
	}
	for _, content := range []string{"", "FROM busybox\n", strings.Repeat("x", 4096)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Find([]string{path}); err == nil || !strings.Contains(err.Error(), "is neither a tar archive") {
			t.Errorf("a file with %.10q...: %v", content, err)
		}
	}
}

// A file that is used in place has a new directory each time. Any other copy has
// a directory that is removed.
func TestPlacesOfCopies(t *testing.T) {
	dir := t.TempDir()
	c := Places{Passing: filepath.Join(dir, "passing"), InPlace: filepath.Join(dir, "sif")}
	seen := map[string]bool{}
	for range 2 {
		place, err := c.dir(3, Archive{SIF: true})
		if err != nil || seen[place] || filepath.Dir(place) != c.InPlace {
			t.Errorf("a SIF file goes to %s, %v", place, err)
		}
		seen[place] = true
	}
	c.InPlace = ""
	for _, a := range []Archive{{}, {SIF: true}} {
		if place, err := c.dir(3, a); err != nil || filepath.Dir(place) != c.Passing {
			t.Errorf("%+v goes to %s, %v", a, place, err)
		}
	}
}
