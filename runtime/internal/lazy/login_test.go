package lazy

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
)

// wantsPassword makes a registry require alice's password, itself or through a
// token service.
func wantsPassword(t *testing.T, r *registry, byToken bool) {
	t.Helper()
	challenge, granted := `Basic realm="x"`, ""
	if byToken {
		tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			if user, secret, _ := request.BasicAuth(); user != "alice" || secret != "secret-word" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			fmt.Fprint(w, `{"token":"granted","expires_in":3600}`)
		}))
		t.Cleanup(tokens.Close)
		challenge, granted = fmt.Sprintf(`Bearer realm=%q,service="x"`, tokens.URL), "Bearer granted"
	}
	r.onRequest(func(w http.ResponseWriter, request *http.Request) bool {
		user, secret, _ := request.BasicAuth()
		if granted != "" && request.Header.Get("Authorization") == granted || granted == "" && user == "alice" && secret == "secret-word" {
			return false
		}
		w.Header().Set("WWW-Authenticate", challenge)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

// A registry that requires a password gets the password of the pull, which is in no
// file. A process that has lost it gets an error.
func TestRegistriesWithPasswords(t *testing.T) {
	for _, byToken := range []bool{false, true} {
		want := corpus.Noise(1, 400000)
		r, source := serve(t, corpus.Pack(t, map[string][]byte{"file": want}), 0, 0)
		wantsPassword(t, r, byToken)
		at, err := url.Parse(source.URL)
		if err != nil {
			t.Fatal(err)
		}
		kept := map[string]Login{}
		maker := Maker{
			Hosts: func(string) ([]docker.RegistryHost, error) {
				return []docker.RegistryHost{{Scheme: "http", Host: at.Host, Path: "/v2"}}, nil
			},
			Keep: func(_ context.Context, login Login) (string, error) {
				kept["first"] = login
				return "first", nil
			},
		}
		dir := t.TempDir()
		path := filepath.Join(dir, "layer")
		layer := Layer{Image: "registry.test/app:1", Digest: digest.FromBytes(r.blob), Contents: r.contents}
		if err := maker.Make(t.Context(), path, layer); err == nil {
			t.Error("a layer was made without the password")
		}
		ctx, end := WithPull(t.Context(), &Pull{Login: func(_ context.Context, host string) (Login, error) {
			if host != at.Host {
				return Login{}, nil
			}
			return Login{"alice", "secret-word"}, nil
		}})
		defer end()
		if err := maker.Make(ctx, path, layer); err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(dir)
		if err != nil || len(files) == 0 {
			t.Fatal(err)
		}
		for _, file := range files {
			if text, err := os.ReadFile(filepath.Join(dir, file.Name())); err != nil || bytes.Contains(text, []byte("secret-word")) {
				t.Errorf("the password is in %s, %v", file.Name(), err)
			}
		}
		var logged []string
		open := func() *File {
			f, err := Open(path, Options{
				Login:        func(name string) (Login, bool) { login, ok := kept[name]; return login, ok },
				PriorityGate: &PriorityGate{}, Scheduler: &Scheduler{}, Log: func(text string) { logged = append(logged, text) },
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
			return f
		}
		forgotten := kept
		kept = nil
		into := make([]byte, 1000)
		f := open()
		if _, err := f.remote.read(t.Context(), 0, 10); !errors.Is(err, errForgotten) {
			t.Errorf("without the password: %v", err)
		}
		kept = forgotten
		f = open()
		if n, err := f.ReadAt(into, f.chunks[0].At); err != nil || !bytes.Equal(into[:n], want[:n]) {
			t.Errorf("%d bytes, %v", n, err)
		}
		if strings.Contains(strings.Join(logged, "\n"), "secret-word") {
			t.Errorf("the password is in the log: %s", logged)
		}
	}
}

// The login for a registry is not sent to hosts that the registry redirects to.
func TestLoginsStayWithTheirRegistry(t *testing.T) {
	r := newRemote(Source{URL: "https://registry.test/v2/app/blobs/x"}, nil, func() (Login, error) { return Login{"alice", "secret-word"}, nil })
	for host, want := range map[string]string{"registry.test": "secret-word", "registry.test:443": "", "elsewhere.test": ""} {
		if _, secret, err := r.credentials(host); secret != want || err != nil {
			t.Errorf("%s gets %q, %v", host, secret, err)
		}
	}
}

// inOrder returns an archive of files in the given order.
func inOrder(t *testing.T, names []string, content func(name string) []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range names {
		text := content(name)
		err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// The content that an image prioritizes is fetched before all other content of
// its layers. A layer whose registry does not answer does not delay the others.
func TestLandmarks(t *testing.T) {
	content := func(name string) []byte {
		if strings.HasPrefix(name, ".") {
			return []byte{0xf}
		}
		return corpus.Noise(uint64(name[0]), 3<<20)
	}
	priority, scheduler := &PriorityGate{}, &Scheduler{}
	lay := func(names ...string) (*registry, *File) {
		r, source := serve(t, inOrder(t, names, content), 1<<20, 0)
		path := filepath.Join(t.TempDir(), "layer")
		if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path, Options{Login: func(string) (Login, bool) { return Login{}, false }, PriorityGate: priority, Scheduler: scheduler, Log: func(text string) { t.Log(text) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return r, f
	}
	plain, none := lay("a", ".no.prefetch.landmark", "b")
	if none.first != 0 {
		t.Errorf("all before %d is to come first", none.first)
	}
	with, urgent := lay("c", ".prefetch.landmark", "d")
	if urgent.first <= 3<<20 || urgent.first > urgent.chunks[len(urgent.chunks)-1].Offset {
		t.Errorf("all before %d is to come first", urgent.first)
	}
	// The registry waits until the other layer has had time to begin.
	asked, answer := make(chan struct{}, 1), make(chan struct{})
	with.onRequest(func(http.ResponseWriter, *http.Request) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-answer
		return false
	})
	ended := make(chan error, 2)
	go func() { ended <- urgent.Fetch(t.Context()) }()
	<-asked
	if !priority.wait(none) || priority.wait(urgent) {
		t.Error("what is to come first does not")
	}
	before := plain.asked.Load()
	go func() { ended <- none.Fetch(t.Context()) }()
	if asked := plain.asked.Load(); asked != before {
		t.Errorf("%d requests for what is not to come first", asked-before)
	}
	close(answer)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if !complete(urgent) || !complete(none) {
		t.Error("something is away")
	}
	// A layer that fails lets the others continue.
	broken, failing := lay("e", ".prefetch.landmark", "f")
	broken.onRequest(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- failing.Fetch(ctx) }()
	_, other := lay("g")
	if err := other.Fetch(t.Context()); err != nil || !complete(other) {
		t.Error(err)
	}
	cancel()
	<-ended
}
