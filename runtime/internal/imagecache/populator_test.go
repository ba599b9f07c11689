package imagecache

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/fuzzbound"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layercache"
	"berth.dev/berth/runtime/internal/layerfile"
)

// registry is an in-memory registry with one image, tagged 1.
type registry struct {
	blobs    map[digest.Digest][]byte
	types    map[digest.Digest]string
	manifest digest.Digest

	mu sync.Mutex
	// asked counts the requests for a blob.
	asked map[digest.Digest]int
	// cut breaks off the first answer for a blob in the middle.
	cut digest.Digest
	// lost breaks the first answer off, too, and then the blob is missing.
	lost digest.Digest
	// held stops the first answer for a blob in the middle until the client
	// disconnects.
	held digest.Digest
	// whole makes the server ignore ranges; otherwise ranges is the answer to
	// them.
	whole  bool
	ranges http.HandlerFunc
	// refused is the digest of a blob; all requests for it fail.
	refused digest.Digest
	// sent counts the sent bytes per blob.
	sent map[digest.Digest]int
	// password, if not empty, is required from clients.
	password string
}

// counting counts the bytes sent.
type counting struct {
	http.ResponseWriter
	count func(int)
}

func (c counting) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.count(n)
	return n, err
}

func (r *registry) put(mediaType string, content []byte) ocispec.Descriptor {
	d := digest.FromBytes(content)
	r.blobs[d], r.types[d] = content, mediaType
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(content))}
}

func (r *registry) putJSON(t *testing.T, mediaType string, value any) ocispec.Descriptor {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return r.put(mediaType, text)
}

func (r *registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	if _, password, _ := request.BasicAuth(); password != r.password {
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	d := digest.Digest(filepath.Base(request.URL.Path))
	if d == "1" {
		d = r.manifest
	}
	content, found := r.blobs[d]
	if !found {
		http.NotFound(w, request)
		return
	}
	r.mu.Lock()
	r.asked[d]++
	cut := (r.cut == d || r.lost == d) && r.asked[d] == 1
	lost := r.lost == d && r.asked[d] > 1
	held := r.held == d && r.asked[d] == 1
	r.mu.Unlock()
	if lost {
		http.NotFound(w, request)
		return
	}
	if r.refused == d {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	w.Header().Set("Content-Type", r.types[d])
	w.Header().Set("Docker-Content-Digest", d.String())
	if cut {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:len(content)/2])
		return // the connection breaks off before the promised end
	}
	w = counting{w, func(n int) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sent[d] += n
	}}
	if held {
		w.Header().Set("Content-Length", strconv.Itoa(len(content)))
		_, _ = w.Write(content[:len(content)/2])
		_ = http.NewResponseController(w.(counting).ResponseWriter).Flush()
		<-request.Context().Done()
		return
	}
	if r.whole {
		request.Header.Del("Range")
	}
	if r.ranges != nil && request.Header.Get("Range") != "" {
		r.ranges(w, request)
		return
	}
	http.ServeContent(w, request, "", time.Time{}, bytes.NewReader(content))
}

// packed returns a layer with one file, and further entries without content.
func packed(t *testing.T, content []byte, others ...tar.Header) (blob []byte, id digest.Digest) {
	t.Helper()
	var archive, zipped bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: "file", Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write(content)
	}
	for _, header := range others {
		err = errors.Join(err, w.WriteHeader(&header))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(archive.Bytes()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return zipped.Bytes(), digest.FromBytes(archive.Bytes())
}

// image holds the parts that a test changes before it is served.
type image struct {
	t        *testing.T
	layer    ocispec.Descriptor
	config   ocispec.Image
	manifest ocispec.Manifest
	index    *ocispec.Index
}

// serve starts a registry with an image of one layer, which change may modify
// before.
func serve(t *testing.T, change func(*registry, *image)) (*registry, *httptest.Server) {
	t.Helper()
	r := &registry{blobs: map[digest.Digest][]byte{}, types: map[digest.Digest]string{}, asked: map[digest.Digest]int{}, sent: map[digest.Digest]int{}}
	blob, id := packed(t, bytes.Repeat([]byte("content of a file, "), 20000))
	img := &image{t: t, layer: r.put(ocispec.MediaTypeImageLayerGzip, blob)}
	img.config.OS, img.config.Architecture = "linux", "amd64"
	img.config.RootFS.DiffIDs = []digest.Digest{id}
	img.manifest = ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	img.manifest.Layers = []ocispec.Descriptor{img.layer}
	change(r, img)
	img.manifest.Config = r.putJSON(t, ocispec.MediaTypeImageConfig, img.config)
	desc := r.putJSON(t, ocispec.MediaTypeImageManifest, img.manifest)
	if img.index != nil {
		desc.Platform = &img.config.Platform
		img.index.Manifests = append(img.index.Manifests, desc)
		desc = r.putJSON(t, ocispec.MediaTypeImageIndex, img.index)
	}
	r.manifest = desc.Digest
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, server
}

func newPopulator(t *testing.T, limit int64) (*Populator, string) {
	t.Helper()
	dir := t.TempDir()
	cache, err := layercache.Open(dir, "test", limit, func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cache.Close() })
	return &Populator{Cache: cache, Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}, Progress: func(int64, int64) {}}, dir
}

func (p *Populator) pullFrom(t *testing.T, server *httptest.Server, logins Logins) (layercache.Image, error) {
	t.Helper()
	return p.Pull(t.Context(), "reg.test/team/app:1", Registries{Servers: map[string]string{"reg.test": server.URL}, Logins: logins})
}

// left returns the names of unfinished files.
func left(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"unfinished/*", "jobs/*/*.part", "partial/*"} {
		found, err := filepath.Glob(filepath.Join(dir, "*", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

func TestPull(t *testing.T) {
	for name, change := range map[string]func(*registry, *image){
		"a manifest": func(*registry, *image) {},
		"an index": func(_ *registry, i *image) {
			i.index = &ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
		},
		"a layer that is cut": func(r *registry, i *image) { r.cut = i.layer.Digest },
		"a layer that is twice": func(_ *registry, i *image) {
			i.manifest.Layers = append(i.manifest.Layers, i.layer)
			i.config.RootFS.DiffIDs = append(i.config.RootFS.DiffIDs, i.config.RootFS.DiffIDs[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, server := serve(t, change)
			p, dir := newPopulator(t, 1<<30)
			var mu sync.Mutex
			var came int64
			p.Progress = func(more, _ int64) {
				mu.Lock()
				defer mu.Unlock()
				came += more
			}
			img, err := p.pullFrom(t, server, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, missing := p.Cache.Size(img); missing > 0 || img.Target.Digest != r.manifest || came == 0 {
				t.Errorf("%d layers missing, %s, %d bytes came", missing, img.Target.Digest, came)
			}
			for _, desc := range img.Blobs {
				if _, err := p.Cache.Blob(desc.Digest); err != nil {
					t.Error(err)
				}
			}
			// A second pull requests no layer.
			var layers []digest.Digest
			for d, mediaType := range r.types {
				if mediaType == ocispec.MediaTypeImageLayerGzip {
					layers = append(layers, d)
					r.asked[d] = 0
				}
			}
			if _, err := p.pullFrom(t, server, nil); err != nil {
				t.Fatal(err)
			}
			for _, d := range layers {
				if r.asked[d] > 0 {
					t.Errorf("layer %s was fetched again", d)
				}
			}
			if rest := left(t, dir); len(rest) > 0 {
				t.Errorf("left %v", rest)
			}
		})
	}
}

func TestPullRefuses(t *testing.T) {
	for want, change := range map[string]func(*registry, *image){
		"another digest": func(r *registry, i *image) {
			r.blobs[i.layer.Digest] = append([]byte(nil), r.blobs[i.layer.Digest]...)
			r.blobs[i.layer.Digest][500] ^= 1
		},
		"read past expected size":              func(r *registry, i *image) { r.blobs[i.layer.Digest] = append(r.blobs[i.layer.Digest], "more"...) },
		"but the image says":                   func(_ *registry, i *image) { i.config.RootFS.DiffIDs[0] = digest.FromString("another layer") },
		"names 2":                              func(_ *registry, i *image) { i.config.RootFS.DiffIDs = append(i.config.RootFS.DiffIDs, "sha256:0") },
		"has no digest that is understood":     func(_ *registry, i *image) { i.config.RootFS.DiffIDs[0] = "sha256:../../../../../tmp/x" },
		"not an image, but of type":            func(_ *registry, i *image) { i.manifest.MediaType = "application/x-other" },
		"which is not a layer":                 func(_ *registry, i *image) { i.manifest.Layers[0].MediaType = "application/x-model" },
		"for linux/arm64, not for linux/amd64": func(_ *registry, i *image) { i.config.Architecture = "arm64" },
		"only for [linux/arm64]": func(_ *registry, i *image) {
			i.config.Architecture = "arm64"
			i.index = &ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
		},
		"layer is too large": func(r *registry, i *image) { // zeros compress well
			blob, id := packed(i.t, make([]byte, 8<<20))
			i.manifest.Layers[0] = r.put(ocispec.MediaTypeImageLayerGzip, blob)
			i.config.RootFS.DiffIDs[0] = id
		},
		"unexpected EOF": func(r *registry, i *image) { // a compressed archive that ends in the middle
			blob := r.blobs[i.layer.Digest]
			i.manifest.Layers[0] = r.put(ocispec.MediaTypeImageLayerGzip, blob[:len(blob)/2])
		},
		"bytes the connection to the registry broke; trying again may help": func(r *registry, i *image) { r.lost = i.layer.Digest },
		"not found":            func(r *registry, i *image) { delete(r.blobs, i.layer.Digest) },
		"of 0 bytes":           func(_ *registry, i *image) { i.manifest.Layers[0].Size = 0 },
		"authorization failed": func(r *registry, _ *image) { r.password = "swordfish" },
	} {
		t.Run(want, func(t *testing.T) {
			_, server := serve(t, change)
			p, dir := newPopulator(t, 4<<20)
			if want == "not an image, but of type" {
				server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/x-other")
					fmt.Fprint(w, "{}")
				})
			}
			img, err := p.pullFrom(t, server, nil)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v, %v; want an error with %q", img, err, want)
			}
			if all, err := p.Cache.Images(); err != nil || len(all) > 0 {
				t.Errorf("it has a name: %v, %v", all, err)
			}
			if rest := left(t, dir); len(rest) > 0 {
				t.Errorf("left %v", rest)
			}
		})
	}
}

// TestFullDiskIsReportedImmediately: a blob that does not fit on the disk is not
// fetched to its end.
func TestFullDiskIsReportedImmediately(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mounts are not allowed here: ", err)
	}
	defer func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	r, _, layer := serveLarge(t)
	var came int64
	err := makeLayer(t.Context(), filepath.Join(disk, "layer"), layer, digest.FromString("its content"), &all{r.blobs[layer.Digest], func() {}}, 1<<30, budget.Budget{}.Stream(1), func(n int) { came += int64(n) })
	if !layercache.NoSpace(err) {
		t.Errorf("%v; want that the disk is full", err)
	}
	if came == layer.Size {
		t.Errorf("all %d bytes came", came)
	}
}

// TestPullForSeveralPlatforms: the folder keeps each platform of an image that was
// pulled.
func TestPullForSeveralPlatforms(t *testing.T) {
	_, server := serve(t, func(r *registry, i *image) {
		i.index = &ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
		config, manifest := i.config, i.manifest
		blob, id := packed(t, []byte("for others"))
		config.Architecture, config.RootFS.DiffIDs = "arm64", []digest.Digest{id}
		manifest.Layers = []ocispec.Descriptor{r.put(ocispec.MediaTypeImageLayerGzip, blob)}
		manifest.Config = r.putJSON(t, ocispec.MediaTypeImageConfig, config)
		desc := r.putJSON(t, ocispec.MediaTypeImageManifest, manifest)
		desc.Platform = &config.Platform
		i.index.Manifests = []ocispec.Descriptor{desc}
	})
	p, _ := newPopulator(t, 1<<30)
	first, err := p.pullFrom(t, server, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Platform, p.Chosen = ocispec.Platform{OS: "linux", Architecture: "arm64"}, true
	second, err := p.pullFrom(t, server, nil)
	if err != nil || second.Layers[0] == first.Layers[0] {
		t.Fatalf("%v, %v", second, err)
	}
	for _, want := range []layercache.Image{first, second} {
		if p.Platform, err = platforms.Parse(want.Platform); err != nil {
			t.Fatal(err)
		}
		got, err := p.Named(want.Name)
		if err != nil || got.Layers[0] != want.Layers[0] {
			t.Errorf("for %s: %v, %v", want.Platform, got, err)
		}
	}
	p.Platform = ocispec.Platform{OS: "linux", Architecture: "s390x"}
	if _, err := p.Named(first.Name); err == nil || !strings.Contains(err.Error(), "not for linux/s390x") {
		t.Errorf("a platform that was named and is not there: %v", err)
	}
	p.Chosen = false
	if got, err := p.Named(first.Name); err != nil || got.Platform != second.Platform {
		t.Errorf("%v, %v; want the one that was brought last", got, err)
	}
}

func TestPullWithPassword(t *testing.T) {
	_, server := serve(t, func(r *registry, _ *image) { r.password = "swordfish" })
	p, _ := newPopulator(t, 1<<30)
	logins, err := ParseLogins([]byte(`{"auths":{"https://reg.test/team":{"username":"me","password":"swordfish"},"reg.test":{"username":"me","password":"wrong"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.pullFrom(t, server, logins); err != nil {
		t.Error(err)
	}
}

func TestImportLayoutInPlace(t *testing.T) {
	r, _ := serve(t, func(*registry, *image) {})
	dir := t.TempDir()
	blobs := filepath.Join(dir, "blobs", "sha256")
	if err := os.MkdirAll(blobs, 0o755); err != nil {
		t.Fatal(err)
	}
	for d, content := range r.blobs {
		if err := os.WriteFile(filepath.Join(blobs, d.Encoded()), content, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	index, err := json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{{
		MediaType: ocispec.MediaTypeImageManifest, Digest: r.manifest, Size: int64(len(r.blobs[r.manifest])),
		Annotations: map[string]string{ocispec.AnnotationRefName: "app:2"},
	}}})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "index.json"), index, 0o444)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o555); err != nil { // nothing is written there
		t.Fatal(err)
	}
	p, _ := newPopulator(t, 1<<30)
	images, err := p.Import(t.Context(), imagestore.Archive{Path: dir})
	if err != nil || len(images) != 1 || images[0].Name != "docker.io/library/app:2" {
		t.Fatalf("%+v, %v", images, err)
	}
	if _, missing := p.Cache.Size(images[0]); missing > 0 {
		t.Errorf("%d layers are missing", missing)
	}
	// Without one of its blobs the layout is refused.
	if err := os.Remove(filepath.Join(blobs, r.manifest.Encoded())); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Import(t.Context(), imagestore.Archive{Path: dir}); err == nil || !strings.Contains(err.Error(), "not complete") {
		t.Errorf("a layout without its manifest: %v", err)
	}
}

// TestImportLayoutThatNamesItself: reading an index that contains itself ends with
// an error.
func TestImportLayoutThatNamesItself(t *testing.T) {
	dir := t.TempDir()
	itself := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromString("itself")}
	index, err := json.Marshal(ocispec.Index{MediaType: itself.MediaType, Manifests: []ocispec.Descriptor{itself}})
	if err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(dir, "blobs", "sha256", itself.Digest.Encoded())
	if err := errors.Join(os.MkdirAll(filepath.Dir(blob), 0o755), os.WriteFile(blob, index, 0o444), os.WriteFile(filepath.Join(dir, "index.json"), index, 0o444)); err != nil {
		t.Fatal(err)
	}
	p, _ := newPopulator(t, 1<<30)
	if _, err := p.Import(t.Context(), imagestore.Archive{Path: dir}); err == nil || !strings.Contains(err.Error(), "another digest") {
		t.Error(err)
	}
}

func TestExportAndImportAgain(t *testing.T) {
	_, server := serve(t, func(_ *registry, i *image) { i.config.Config.Env = []string{"A=b"} })
	p, _ := newPopulator(t, 1<<30)
	pulled, err := p.pullFrom(t, server, nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "app.tar")
	if err := p.Export(t.Context(), pulled, path); err != nil {
		t.Fatal(err)
	}
	other, _ := newPopulator(t, 1<<30)
	images, err := other.Import(t.Context(), imagestore.Archive{Path: path})
	if err != nil || len(images) != 1 || images[0].Name != pulled.Name {
		t.Fatalf("%+v, %v", images, err)
	}
	text, err := configuration(other.Cache, images[0])
	if err != nil || !strings.Contains(string(text), `"Env":["A=b"]`) {
		t.Errorf("configuration %s, %v", text, err)
	}
	if size, missing := other.Cache.Size(images[0]); size == 0 || missing > 0 {
		t.Errorf("%d bytes, %d layers are missing", size, missing)
	}
	// If a layer is missing, no archive is written, not even a part.
	if err := errors.Join(p.Cache.Close(), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Cache.Remove(pulled.Name, nil); err != nil {
		t.Fatal(err)
	}
	if err := p.Export(t.Context(), pulled, path); err == nil {
		t.Error("an image that is gone was exported")
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left %v, %v", files, err)
	}
}

func TestTooLargeIsReported(t *testing.T) {
	blob, _ := packed(t, make([]byte, 1<<20))
	_, err := layerfile.Convert(t.Context(), filepath.Join(t.TempDir(), "layer"), bytes.NewReader(blob), 1<<19, budget.Budget{}.Layer(0))
	if !errors.Is(err, layerfile.ErrTooLarge) {
		t.Error(err)
	}
}

func FuzzLogins(f *testing.F) {
	f.Add([]byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"bWU6c3dvcmRmaXNo"},"a.test":{"identitytoken":"x"}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		logins, err := ParseLogins(text)
		if err != nil && logins != nil {
			t.Error("both logins and an error")
		}
	})
}
