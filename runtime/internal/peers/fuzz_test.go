package peers

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/fuzzbound"
)

// answerOf is a node that gives each request the same answer.
type answerOf struct {
	status int
	body   []byte
}

func (a answerOf) RoundTrip(request *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Status: http.StatusText(a.status), Body: io.NopCloser(bytes.NewReader(a.body)), Request: request}, nil
}

// lost is a writer that discards a layer.
type lost struct{ content.Writer }

func (lost) Write(p []byte) (int, error) { return len(p), nil }

// fuzzedGroup returns node 0 of three, which holds one layer, and the layer's digest.
func fuzzedGroup(f *testing.F) (*group, digest.Digest) {
	f.Helper()
	store, err := newStore(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	layer := []byte("a layer")
	dgst := digest.FromBytes(layer)
	if err := os.MkdirAll(filepath.Dir(store.blobOf(dgst)), 0o700); err != nil {
		f.Fatal(err)
	}
	if err := os.WriteFile(store.blobOf(dgst), layer, 0o600); err != nil {
		f.Fatal(err)
	}
	return &group{nodes: []string{"a:1", "b:1", "c:1"}, store: store, counts: new(Counts), client: &http.Client{}, silence: time.Minute, dead: map[int]time.Time{}}, dgst
}

// FuzzAnswer asks another node who has a layer, and downloads a layer from it.
func FuzzAnswer(f *testing.F) {
	f.Add(uint16(http.StatusOK), []byte("1"), uint16(1), uint16(0))
	f.Add(uint16(http.StatusOK), []byte("-1"), uint16(10), uint16(3))
	f.Add(uint16(http.StatusNotFound), []byte("999999999999999999999"), uint16(10), uint16(20))
	g, _ := fuzzedGroup(f)
	f.Fuzz(func(t *testing.T, status uint16, body []byte, size, offset uint16) {
		fuzzbound.Watch(t)
		g.client.Transport = answerOf{int(status), body}
		giver, err := g.askNode(t.Context(), 1, question{digest: digest.FromBytes(body), without: []int{2}})
		if err == nil && (giver < nobody || giver == g.self || giver >= len(g.nodes)) {
			t.Errorf("node %d gives", giver)
		}
		in := &incoming{size: int64(size), received: int64(offset)}
		to := &writer{Writer: lost{}, ctx: t.Context(), in: in}
		taken, err := g.take(t.Context(), 1, digest.FromBytes(body), int64(offset), int64(size), to)
		left := max(0, int64(size)-int64(offset))
		if taken > left || taken != to.taken || in.received != int64(offset)+taken || err == nil && taken != left {
			t.Errorf("%d bytes of %d are taken, counted as %d, %v", taken, left, to.taken, err)
		}
	})
}

// FuzzQuestion requests any path and query from a node.
func FuzzQuestion(f *testing.F) {
	g, dgst := fuzzedGroup(f)
	f.Add("giver/"+dgst.String(), "node=1&again=true&without=2&without=0")
	f.Add("giver/"+dgst.String(), "node=-1")
	f.Add("giver/sha512:00", "node=1")
	f.Add("layer/"+dgst.String(), "from=3")
	f.Add("layer/"+dgst.String(), "from=9223372036854775808")
	f.Add("layer/../../etc/passwd", "from=0")
	f.Add("giver/"+dgst.String(), strings.Repeat("without=1&", 20000)+"node=2")
	mux := http.NewServeMux()
	mux.HandleFunc("GET /giver/{digest}", g.answer)
	mux.HandleFunc("GET /layer/{digest}", g.give)
	f.Fuzz(func(t *testing.T, path, query string) {
		fuzzbound.Watch(t)
		request := (&http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/" + path, RawQuery: query}, Host: "a", Header: http.Header{}}).WithContext(context.Background())
		answer := httptest.NewRecorder()
		mux.ServeHTTP(answer, request)
		if answer.Code == http.StatusOK && strings.HasPrefix(path, "layer/") && !strings.HasSuffix("a layer", answer.Body.String()) {
			t.Errorf("%s?%s gives %q", path, query, answer.Body)
		}
	})
}
