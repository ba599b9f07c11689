package lazy

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/stargz-snapshotter/estargz"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/fuzzbound"
)

// answerOf is a registry that gives each request the same answer.
type answerOf struct {
	status int
	header http.Header
	body   []byte
}

func (a answerOf) RoundTrip(request *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: a.status, Status: http.StatusText(a.status), Header: a.header.Clone(), ContentLength: -1,
		Body: io.NopCloser(bytes.NewReader(a.body)), Request: request,
	}, nil
}

// blobOf returns a small eStargz blob.
func blobOf(f *testing.F) []byte {
	f.Helper()
	var archive, blob bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: "file", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5})
	if err == nil {
		_, err = w.Write([]byte("berth"))
	}
	if err == nil {
		err = w.Close()
	}
	z := estargz.NewWriter(&blob)
	if err == nil {
		err = z.AppendTar(&archive)
	}
	if err == nil {
		_, err = z.Close()
	}
	if err != nil {
		f.Fatal(err)
	}
	return blob.Bytes()
}

// FuzzAnswer asks a registry for a table of contents. Its answers have any status,
// range, challenge and body.
func FuzzAnswer(f *testing.F) {
	blob := blobOf(f)
	f.Add(uint16(http.StatusPartialContent), "bytes 0-0/1000", "", blob, uint32(0))
	f.Add(uint16(http.StatusPartialContent), "bytes 0-/*", "", blob[:1], uint32(len(blob)))
	f.Add(uint16(http.StatusPartialContent), "bytes 0-0/9223372036854775807", "", blob[:1], uint32(0))
	f.Add(uint16(http.StatusPartialContent), "", "", blob, uint32(len(blob)))
	f.Add(uint16(http.StatusUnauthorized), "", `Bearer realm="https://a.test/token",service="a",scope="b"`, []byte(`{"token":"a","expires_in":1}`), uint32(0))
	f.Add(uint16(http.StatusOK), "", `Basic realm=`, []byte{}, uint32(0))
	f.Fuzz(func(t *testing.T, status uint16, contentRange, challenge string, body []byte, size uint32) {
		fuzzbound.Watch(t)
		header := http.Header{"Content-Range": {contentRange}, "Www-Authenticate": {challenge}}
		r := newRemote(Source{URL: "https://a.test/v2/a/blobs/b", Scope: "repository:a:pull", Size: int64(size)}, nil, func() (Login, error) { return Login{}, nil })
		r.client.Transport = answerOf{int(status), header, body}
		table, err := r.contents(context.Background(), 1<<20)
		if err != nil {
			return
		}
		if int64(len(table.packed))+table.end+estargz.FooterSize != r.Size || table.end <= 0 {
			t.Errorf("a table of %d bytes at %d of %d", len(table.packed), table.end, r.Size)
		}
		_, _ = parseContents(table.packed, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", budget.Budget{}.Layer(0))
	})
}

// FuzzIndex opens a layer with any index, and fetches its content from a registry
// that answers every request.
func FuzzIndex(f *testing.F) {
	const digest = `"d":"sha256:ae4d6e0b02f1e8a3ac0ca1a0a5fe0a7c8f2d2c2f4e6b2b5a7c3f4d5e6f708192"`
	blob := blobOf(f)
	for _, chunks := range []string{
		`{"o":0,"e":20,"a":4096,"s":5,` + digest + `}`,
		`{"o":0,"e":20,"a":4096,"s":-5,` + digest + `},{"o":0,"e":20,"i":-1,"a":4096,"s":5,` + digest + `}`,
		`{"o":10,"e":2,"a":-1,"s":5,` + digest + `}`,
		`{"o":0,"e":20,"i":9223372036854775807,"a":4096,"s":9223372036854775807,` + digest + `}`,
		`{"o":0,"e":9223372036854775807,"a":4096,"s":5,"d":"x"}`,
		`{"o":0,"e":20,"a":4096,"s":5}`,
	} {
		f.Add([]byte(`{"source":{"url":"https://a.test/b","size":100},"chunks":[`+chunks+`]}`), blob)
	}
	f.Add([]byte(`{"source":{"url":":"},"first":-1}`), []byte{})
	dir := f.TempDir()
	path := filepath.Join(dir, "layer")
	f.Fuzz(func(t *testing.T, text, blob []byte) {
		fuzzbound.Watch(t)
		chunks := bytes.Count(text, []byte(`"s"`))
		for name, content := range map[string][]byte{path: make([]byte, 8192), path + indexExtension: text, path + haveExtension: make([]byte, chunks)} {
			if err := os.WriteFile(name, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		file, err := Open(path, Options{Login: func(string) (Login, bool) { return Login{}, false }, PriorityGate: &PriorityGate{}, Scheduler: &Scheduler{}, Log: func(string) {}})
		if err != nil {
			return
		}
		defer file.Close()
		for i := range file.chunks {
			file.mu.Lock()
			if file.state[i] == away {
				c := file.chunks[i]
				file.remote.client.Transport = answerOf{http.StatusPartialContent, http.Header{}, blob[:max(0, min(int64(len(blob)), c.End-c.Offset))]}
				if err := file.fetch(t.Context(), i, ahead, &file.asking); err == nil && file.state[i] != here {
					t.Errorf("chunk %+v is fetched, and its state is %d", c, file.state[i])
				}
			}
			file.mu.Unlock()
		}
	})
}
