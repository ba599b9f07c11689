package registry

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	config = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	layer  = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	image  = "sha256:cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc"
	broken = "sha256:dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
)

func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	put := func(path, content string) {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	blob := func(digest, content string) {
		put(filepath.Join(blobs, strings.TrimPrefix(digest, "sha256:")), content)
	}
	blob(config, "{}")
	blob(layer, "0123456789")
	blob(image, fmt.Sprintf(`{"config":{"digest":%q},"layers":[{"digest":%q}]}`, config, layer))
	blob(broken, fmt.Sprintf(`{"config":{"digest":%q},"layers":[{"digest":"sha256:../../index.json"}]}`, config))
	const named = `{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":%q,"annotations":{"org.opencontainers.image.ref.name":%q}}`
	put(filepath.Join(dir, "index.json"), `{"manifests":[`+fmt.Sprintf(named, image, "patch:v1")+","+fmt.Sprintf(named, broken, "broken:1")+`]}`)
	return dir
}

func TestRegistry(t *testing.T) {
	r, err := Serve(folder(t), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func(method, path, part string) (int, string) {
		t.Helper()
		q, err := http.NewRequest(method, "http://127.0.0.1:"+r.Port()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if part != "" {
			q.Header.Set("Range", part)
		}
		answer, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode, strings.TrimSpace(string(content))
	}
	for _, c := range []struct {
		method, path, part string
		code               int
		want               string
	}{
		{"GET", "/v2/", "", 200, ""},
		{"GET", "/v2/patch/manifests/v1", "", 200, "layers"},
		{"HEAD", "/v2/patch/manifests/v1", "", 200, ""},
		{"GET", "/v2/patch/manifests/" + image, "", 200, "layers"},
		{"GET", "/v2/patch/manifests/v9", "", 404, "MANIFEST_UNKNOWN"},
		{"GET", "/v2/patch/blobs/" + layer, "", 200, "0123456789"},
		{"GET", "/v2/patch/blobs/" + layer, "bytes=8-", 206, "89"},
		{"GET", "/v2/patch/blobs/sha256:../../index.json", "", 404, ""},
		{"GET", "/v2/patch/blobs/" + strings.Repeat("e", 64), "", 404, ""},
		{"PUT", "/v2/patch/manifests/v1", "", 405, "takes nothing"},
		{"GET", "/else", "", 404, ""},
		{"GET", BeginPath + "nothing", "", 404, "there is no image nothing"},
		{"GET", BeginPath + "broken:1", "", 500, "is not a digest"},
		{"GET", SentPath, "", 200, `"bytes":12`},
		{"GET", BeginPath + "patch:v1", "", 200, ""},
		// Ten bytes of the layer, and the configuration.
		{"GET", SentPath, "", 200, `"bytes":0,"image":12`},
	} {
		code, content := ask(c.method, c.path, c.part)
		if code != c.code || !strings.Contains(content, c.want) {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, code, content, c.code, c.want)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestNoImages(t *testing.T) {
	dir := t.TempDir()
	if _, err := Serve(dir, 0, 0); err == nil {
		t.Error("a registry of nothing")
	}
	if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte("no"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Names(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("an index that is none: %v", err)
	}
	before := Digest(dir)
	if err := os.WriteFile(filepath.Join(dir, "index.json"), []byte("yes"), 0o644); err != nil {
		t.Fatal(err)
	}
	if now := Digest(dir); before == "" || now == "" || now == before || Digest(filepath.Join(dir, "none")) != "" {
		t.Errorf("two folders have %q and %q, and none has %q", before, now, Digest(filepath.Join(dir, "none")))
	}
}

// nowhere is a connection that discards everything at once.
type nowhere struct{ net.Conn }

func (nowhere) Write(p []byte) (int, error) { return len(p), nil }

// one is a listener of such connections.
type one struct{ net.Listener }

func (one) Accept() (net.Conn, error) { return nowhere{}, nil }

// TestShaper: all connections share one rate, and each begins with a delay.
func TestShaper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLine(one{}, 1<<20, time.Second)
		start := time.Now()
		done := make(chan time.Duration)
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if n, err := c.Write(make([]byte, 1<<20)); n != 1<<20 || err != nil {
					t.Errorf("wrote %d, %v", n, err)
				}
				done <- time.Since(start)
			}()
		}
		<-done
		last := <-done
		// Two seconds for the bytes and one of delay, minus the bytes in the queue.
		if want := 3*time.Second - time.Second*burst/(1<<20); last < want-time.Millisecond || last > want+time.Millisecond {
			t.Errorf("it took %s, want %s", last, want)
		}
	})
}

// TestDelays: a connection's first request has the connection's delay and the
// request's.
func TestDelays(t *testing.T) {
	const delay = 50 * time.Millisecond
	r, err := Serve(folder(t), 0, delay)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for _, delays := range []time.Duration{2, 1} {
		start := time.Now()
		answer, err := client.Get("http://127.0.0.1:" + r.Port() + "/v2/") //nolint:noctx // it is this process that answers
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if took := time.Since(start); took < delays*delay {
			t.Errorf("it took %s, less than %d delays of %s", took, delays, delay)
		}
	}
}
