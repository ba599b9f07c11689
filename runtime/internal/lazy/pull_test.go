package lazy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
)

// pulledImage is an image of several layers in a registry.
type pulledImage struct {
	maker    Maker
	manifest ocispec.Manifest
	blobs    map[string][]byte

	mu    sync.Mutex
	asked map[string]int
	// answer, if set, is called first; it returns true if it has answered.
	answer func(w http.ResponseWriter, layer string) bool
}

func pullImage(t *testing.T, layers int) *pulledImage {
	t.Helper()
	i := &pulledImage{blobs: map[string][]byte{}, asked: map[string]int{}}
	for n := range layers {
		var blob bytes.Buffer
		w := estargz.NewWriter(&blob)
		if err := w.AppendTar(bytes.NewReader(corpus.Pack(t, map[string][]byte{"file": corpus.Noise(uint64(n), 1000)}))); err != nil {
			t.Fatal(err)
		}
		contents, err := w.Close()
		if err != nil {
			t.Fatal(err)
		}
		d := digest.FromBytes(blob.Bytes())
		i.blobs[d.String()] = blob.Bytes()
		i.manifest.Layers = append(i.manifest.Layers, ocispec.Descriptor{
			Digest: d, Size: int64(blob.Len()), Annotations: map[string]string{estargz.TOCJSONDigestAnnotation: contents.String()},
		})
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		layer := request.URL.Path[strings.LastIndex(request.URL.Path, "/")+1:]
		i.mu.Lock()
		i.asked[layer]++
		answer := i.answer
		i.mu.Unlock()
		if answer == nil || !answer(w, layer) {
			http.ServeContent(w, request, "", time.Time{}, bytes.NewReader(i.blobs[layer]))
		}
	}))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	i.maker.Hosts = func(string) ([]docker.RegistryHost, error) {
		return []docker.RegistryHost{{Scheme: "http", Host: at.Host, Path: "/v2"}}, nil
	}
	return i
}

// pull returns a context for making layers.
func (i *pulledImage) pull(t *testing.T) context.Context {
	t.Helper()
	ctx, end := WithPull(t.Context(), &Pull{Blob: func(_ context.Context, d digest.Digest) ([]byte, error) {
		if d != digest.FromString("manifest") {
			return nil, fmt.Errorf("there is no %s", d)
		}
		return json.Marshal(i.manifest)
	}})
	t.Cleanup(end)
	return ctx
}

func (i *pulledImage) layer(n int) Layer {
	desc := i.manifest.Layers[n]
	return Layer{Image: "registry.test/app:1", Manifest: digest.FromString("manifest"), Digest: desc.Digest, Contents: digest.Digest(desc.Annotations[estargz.TOCJSONDigestAnnotation])}
}

func (i *pulledImage) times(n int) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.asked[i.manifest.Layers[n].Digest.String()]
}

// Making a layer requests the tables of contents of all layers above it at once,
// and only once.
func TestTablesArePrefetched(t *testing.T) {
	const layers, plain, own = 5, 3, 1
	i := pullImage(t, layers)
	i.manifest.Layers[plain].Annotations = nil
	// The registry answers only after all tables have been requested.
	together := make(chan struct{})
	coming := 0
	i.answer = func(http.ResponseWriter, string) bool {
		i.mu.Lock()
		coming++
		if coming == layers-own-1 {
			close(together)
		}
		i.mu.Unlock()
		select {
		case <-together:
		case <-time.After(time.Minute):
			t.Error("the others are not asked for")
		}
		return false
	}
	ctx, dir := i.pull(t), t.TempDir()
	for n := own; n < layers; n++ { // below it is one that is here already
		if n == plain {
			continue
		}
		path := filepath.Join(dir, fmt.Sprint("layer", n))
		if err := i.maker.Make(ctx, path, i.layer(n)); err != nil {
			t.Fatal(err)
		}
		_, image := open(t, path)
		if content, err := read(image, "file"); err != nil || !bytes.Equal(content, corpus.Noise(uint64(n), 1000)) {
			t.Errorf("layer %d: %d bytes, %v", n, len(content), err)
		}
	}
	for n, want := range []int{0, 2, 2, 0, 2} { // the table, and the content
		if got := i.times(n); got != want {
			t.Errorf("layer %d was asked for %d times, want %d", n, got, want)
		}
	}
}

// A table that fails ahead is requested once more when its layer is made.
func TestTablePrefetchFails(t *testing.T) {
	const layers = 3
	for name, spoil := range map[string]func(*pulledImage, *Layer){
		"no manifest": func(_ *pulledImage, l *Layer) { l.Manifest = digest.FromString("x") },
		"an error first": func(i *pulledImage, _ *Layer) {
			failed := map[string]bool{}
			i.answer = func(w http.ResponseWriter, layer string) bool {
				i.mu.Lock()
				defer i.mu.Unlock()
				if failed[layer] {
					return false
				}
				failed[layer] = true
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
		},
	} {
		i := pullImage(t, layers)
		first := i.layer(0)
		spoil(i, &first)
		if err := i.maker.Make(i.pull(t), filepath.Join(t.TempDir(), "layer"), first); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A table that the image does not name is refused, prefetched or not.
	i := pullImage(t, layers)
	for _, contents := range []digest.Digest{digest.FromString("x"), "x", "sha1:x"} {
		l := i.layer(0)
		l.Contents = contents
		if err := i.maker.Make(i.pull(t), filepath.Join(t.TempDir(), "layer"), l); err == nil {
			t.Errorf("a layer was made of %q", contents)
		}
	}
}

// The end of a pull cancels its requests.
func TestPullEnds(t *testing.T) {
	i := pullImage(t, 3)
	release := make(chan struct{})
	t.Cleanup(sync.OnceFunc(func() { close(release) }))
	coming := make(chan struct{}, 100)
	i.answer = func(http.ResponseWriter, string) bool {
		coming <- struct{}{}
		<-release
		return false
	}
	ctx, end := WithPull(t.Context(), &Pull{Blob: func(context.Context, digest.Digest) ([]byte, error) { return json.Marshal(i.manifest) }})
	made := make(chan error)
	path := filepath.Join(t.TempDir(), "layer")
	go func() { made <- i.maker.Make(ctx, path, i.layer(0)) }()
	<-coming
	end()
	if err := <-made; !errors.Is(err, context.Canceled) {
		t.Errorf("a layer of a pull that has ended: %v", err)
	}
	end()
}

// A registry and a manifest that state different sizes of a layer are not believed, when
// the layer is made and when it is read. The size decides how much the layer may contain.
func TestSizesOfALayerMustAgree(t *testing.T) {
	for _, wrong := range []int64{-1000, 1000} {
		i := pullImage(t, 2)
		first := i.layer(0)
		right := i.manifest.Layers[0].Size
		i.manifest.Layers[0].Size += wrong
		err := i.maker.Make(i.pull(t), filepath.Join(t.TempDir(), "layer"), first)
		want := fmt.Sprintf("it says that the layer has %d bytes, and the image says %d", right, right+wrong)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), first.Image) || !strings.Contains(err.Error(), first.Digest.String()) {
			t.Errorf("want %q: %v", want, err)
		}
	}
	i := pullImage(t, 1)
	path := filepath.Join(t.TempDir(), "layer")
	if err := i.maker.Make(i.pull(t), path, i.layer(0)); err != nil {
		t.Fatal(err)
	}
	i.mu.Lock()
	i.answer = func(w http.ResponseWriter, _ string) bool {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", 1<<40, 1<<50))
		w.WriteHeader(http.StatusPartialContent)
		for range 64 {
			_, _ = w.Write(make([]byte, 1<<20))
		}
		return true
	}
	i.mu.Unlock()
	_, image := open(t, path)
	if _, err := read(image, "file"); !errors.Is(err, errRefused) {
		t.Errorf("the registry says another size later: %v", err)
	}
}

// The layers of an image that are made from their tables of contents count together.
func TestTablesOfAnImageCountTogether(t *testing.T) {
	i := pullImage(t, 2)
	p := pullOf(i.pull(t))
	if err := (budget.Budget{}).Layer(0).Of(&p.image).Content(4 << 30); err != nil {
		t.Fatal(err)
	}
	err := i.maker.Make(context.WithValue(t.Context(), pullKey{}, p), filepath.Join(t.TempDir(), "layer"), i.layer(1))
	if !errors.Is(err, budget.ErrExceeded) {
		t.Errorf("a further layer: %v", err)
	}
}

// A layer that could not be made from one registry and is made from the next counts once.
func TestFailedLayersDoNotCount(t *testing.T) {
	const size = 16 << 20
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"large": make([]byte, size)}), 4<<20, 0)
	table, err := newRemote(source, nil, func() (Login, error) { return Login{}, nil }).contents(t.Context(), maxPacked)
	if err != nil {
		t.Fatal(err)
	}
	var image budget.Image
	if err := (budget.Budget{}).Layer(1).Of(&image).Content(4<<30 - size*3/2); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "layer")
	if err := os.Mkdir(path+indexExtension, 0o700); err != nil { // in the way
		t.Fatal(err)
	}
	if err := table.make(path, r.contents, budget.Budget{}, &image); err == nil {
		t.Fatal("a layer is made without its index")
	}
	if err := table.make(path, r.contents, budget.Budget{}, &image); err != nil {
		t.Error(err)
	}
}
