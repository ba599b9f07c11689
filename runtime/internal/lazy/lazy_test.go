package lazy

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fuzzbound"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/tree"
)

// registry serves one blob.
type registry struct {
	blob     []byte
	contents digest.Digest
	sent     atomic.Int64
	asked    atomic.Int64

	mu sync.Mutex
	// answer, if set, is called first; it returns true if it has answered.
	answer func(http.ResponseWriter, *http.Request) bool
}

func (r *registry) onRequest(answer func(http.ResponseWriter, *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

func (r *registry) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	r.asked.Add(1)
	r.mu.Lock()
	answer := r.answer
	r.mu.Unlock()
	if answer != nil && answer(w, request) {
		return
	}
	http.ServeContent(counting{w, &r.sent}, request, "", time.Time{}, bytes.NewReader(r.blob))
}

type counting struct {
	http.ResponseWriter
	sent *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	c.sent.Add(int64(len(p)))
	return c.ResponseWriter.Write(p)
}

func serve(t *testing.T, archive []byte, chunk, least int) (*registry, Source) {
	t.Helper()
	var blob bytes.Buffer
	w := estargz.NewWriter(&blob)
	w.ChunkSize, w.MinChunkSize = chunk, least
	err := w.AppendTar(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	r := &registry{}
	if r.contents, err = w.Close(); err != nil {
		t.Fatal(err)
	}
	r.blob = blob.Bytes()
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return r, Source{URL: server.URL + "/v2/app/blobs/x", Scope: "repository:app:pull"}
}

func open(t *testing.T, path string) (*File, *erofs.Image) {
	t.Helper()
	f, err := Open(path, Options{Login: func(string) (Login, bool) { return Login{}, false }, PriorityGate: &PriorityGate{}, Scheduler: &Scheduler{}, Log: func(text string) { t.Log(text) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	image, err := f.Image()
	if err != nil {
		t.Fatal(err)
	}
	return f, image
}

func complete(f *File) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !slices.ContainsFunc(f.state, func(state byte) bool { return state != here })
}

// read returns the content of a file in the root directory.
func read(image *erofs.Image, name string) ([]byte, error) {
	all, err := tree.New([]*erofs.Image{image})
	if err != nil {
		return nil, err
	}
	n, err := all.Lookup(tree.RootID, name)
	if err != nil {
		return nil, err
	}
	content := make([]byte, n.Size)
	_, err = all.ReadAt(n, content, 0)
	return content, err
}

// lines describes everything in the image of a layer.
func lines(t *testing.T, image *erofs.Image) (all []string) {
	t.Helper()
	var walk func(number uint64, name string)
	walk = func(number uint64, name string) {
		n, err := image.Inode(number)
		if err != nil {
			t.Fatal(err)
		}
		xattrs, err := image.Xattrs(n)
		if err != nil {
			t.Fatal(err)
		}
		// The table of contents stores times in whole seconds.
		changed := time.Unix(n.Seconds, int64(n.Nanoseconds)).Round(time.Second).Unix()
		scheduler := fmt.Sprintf("%q %o %d:%d links %d device %d %d %v", name, n.Mode, n.UID, n.GID, n.Links, n.Device, changed, xattrs)
		switch n.Mode & erofs.TypeMask {
		case erofs.TypeDir:
			entries, _, err := image.Directory(n)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				walk(e.Number, name+"/"+e.Name)
			}
		case erofs.TypeRegular:
			content := make([]byte, n.Size)
			if _, err := image.ReadAt(n, content, 0); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			scheduler += fmt.Sprint(n.Size, digest.FromBytes(content))
		case erofs.TypeSymlink:
			target, err := image.Link(n)
			if err != nil {
				t.Fatal(err)
			}
			scheduler += target
		}
		all = append(all, scheduler)
	}
	walk(erofs.Root, "")
	return all
}

// Reads of a lazy layer return the content of the whole layer.
func TestEqualsUnsplitData(t *testing.T) {
	layers, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for i, archive := range layers {
		least := i % 2 * 50000 // one chunk in a stream, or several
		r, source := serve(t, archive, 10000, least)
		path := filepath.Join(t.TempDir(), "layer")
		err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{})
		if err != nil && strings.Contains(err.Error(), "not UTF-8") {
			archive = inUTF8(t, archive)
			r, source = serve(t, archive, 10000, least)
			err = Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{})
		}
		if err != nil {
			t.Errorf("layer %d: %v", i, err)
			continue
		}
		_, image := open(t, path)
		file, err := os.Create(filepath.Join(t.TempDir(), "whole"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := layer.Convert(bytes.NewReader(archive), file, budget.Budget{}.Layer(0)); err != nil {
			t.Fatal(err)
		}
		info, err := file.Stat()
		if err != nil {
			t.Fatal(err)
		}
		whole, err := erofs.Open(file, info.Size())
		if err != nil {
			t.Fatal(err)
		}
		got, want := lines(t, image), lines(t, whole)
		if !slices.Equal(got, want) {
			t.Errorf("layer %d:\n%s", i, corpus.Difference(got, want))
		}
	}
}

// inUTF8 returns an archive without names that a table of contents cannot hold.
func inUTF8(t *testing.T, archive []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, r := tar.NewWriter(&out), tar.NewReader(bytes.NewReader(archive))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.ValidString(header.Name + header.Linkname) {
			continue
		}
		if err = w.WriteHeader(header); err == nil {
			_, err = io.Copy(w, r)
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

func TestOnlyContentReadIsFetched(t *testing.T) {
	files := map[string][]byte{"first": corpus.Noise(1, 3<<20), "second": corpus.Noise(2, 3<<20), "third": corpus.Noise(3, 5000)}
	r, source := serve(t, corpus.Pack(t, files), 1<<20, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	if !Is(path) || Is(path+"x") {
		t.Error("which layers are lazy is not known")
	}
	f, image := open(t, path)
	if content, err := read(image, "second"); err != nil || !bytes.Equal(content, files["second"]) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if sent := r.sent.Load(); sent > 4<<20 || complete(f) {
		t.Errorf("%d bytes came for a file of 3 MiB", sent)
	}
	// A successor knows the chunks that have arrived.
	f.Close()
	asked := r.asked.Load()
	f, image = open(t, path)
	if content, err := read(image, "second"); err != nil || !bytes.Equal(content, files["second"]) || r.asked.Load() != asked {
		t.Errorf("%d bytes, %v, %d requests more", len(content), err, r.asked.Load()-asked)
	}
	if err := f.Fetch(t.Context()); err != nil || !complete(f) {
		t.Errorf("in the background: %v", err)
	}
	asked = r.asked.Load()
	for name, want := range files {
		if content, err := read(image, name); err != nil || !bytes.Equal(content, want) {
			t.Errorf("%s: %d bytes, %v", name, len(content), err)
		}
	}
	if r.asked.Load() != asked {
		t.Error("what is complete was asked for again")
	}
	// The whole blob was fetched once, except the table of contents, which was
	// fetched before.
	if sent := r.sent.Load(); sent > int64(len(r.blob))+endSize {
		t.Errorf("%d bytes came of %d", sent, len(r.blob))
	}
}

// TestFilesThatShareAStream: files of one stream arrive together, whichever is read
// first. A wrong file is never returned, and does not block the others.
func TestFilesThatShareAStream(t *testing.T) {
	files := map[string][]byte{}
	for i := range 20 {
		files[fmt.Sprintf("file%02d", i)] = corpus.Noise(uint64(i), 100000) // in total more than one request fetches
	}
	r, source := serve(t, corpus.Pack(t, files), 0, 4<<20)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, image := open(t, path)
	if offset := f.chunks[0].Offset; f.chunks[len(f.chunks)-1].Offset != offset {
		t.Fatalf("the first is at %d, the last is not", offset)
	}
	const bad = 7
	if len(f.chunks) != len(files) {
		t.Fatalf("%d chunks", len(f.chunks))
	}
	right := f.chunks[bad].Digest
	f.chunks[bad].Digest = digest.FromString("x")
	asked := r.asked.Load()
	for _, name := range []string{"file13", "file00", "file08", "file06", "file19"} {
		if content, err := read(image, name); err != nil || !bytes.Equal(content, files[name]) {
			t.Errorf("%s: %d bytes, %v", name, len(content), err)
		}
	}
	if more := r.asked.Load() - asked; more != 1 {
		t.Errorf("%d requests", more)
	}
	f.chunks[bad].Digest = right
	if content, err := read(image, "file07"); err != nil || !bytes.Equal(content, files["file07"]) {
		t.Errorf("what was wrong: %d bytes, %v", len(content), err)
	}
	if !complete(f) {
		t.Error("something has not come")
	}
}

func TestZeroBlocksTakeNoSpace(t *testing.T) {
	const size = 8 << 20
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"zeros": make([]byte, size)}), 1<<20, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, image := open(t, path)
	if err := f.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if content, err := read(image, "zeros"); err != nil || !bytes.Equal(content, make([]byte, size)) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	var info unix.Stat_t
	if err := unix.Stat(path, &info); err != nil || info.Blocks*512 >= size {
		t.Errorf("they take %d bytes, %v", info.Blocks*512, err)
	}
}

// TestManyReaders: concurrent reads of the same content cause one request, also
// beside the background download.
func TestManyReaders(t *testing.T) {
	files := map[string][]byte{}
	for i := range 50 {
		files[fmt.Sprint("file", i)] = corpus.Noise(uint64(i), 30000)
	}
	r, source := serve(t, corpus.Pack(t, files), 0, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, image := open(t, path)
	var group sync.WaitGroup
	group.Go(func() {
		if err := f.Fetch(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for range 4 {
		for name, want := range files {
			group.Go(func() {
				if content, err := read(image, name); err != nil || !bytes.Equal(content, want) {
					t.Errorf("%s: %d bytes, %v", name, len(content), err)
				}
			})
		}
	}
	group.Wait()
	if sent := r.sent.Load(); sent > int64(len(r.blob))+endSize || !complete(f) {
		t.Errorf("%d bytes came of %d", sent, len(r.blob))
	}
}

// TestTurns: two background downloads of a layer share its chunks. Neither requests
// a chunk of the other, and a failed request is repeated.
func TestTurns(t *testing.T) {
	want := corpus.Noise(1, 8<<20)
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"file": want}), 100000, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, image := open(t, path)
	var asked atomic.Int64
	r.onRequest(func(w http.ResponseWriter, _ *http.Request) bool {
		const bad = 3
		if asked.Add(1) != bad {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	if err := f.Fetch(t.Context()); err != nil || !complete(f) {
		t.Fatalf("in the background: %v", err)
	}
	if sent := r.sent.Load(); sent > int64(len(r.blob))+endSize {
		t.Errorf("%d bytes came of %d", sent, len(r.blob))
	}
	if content, err := read(image, "file"); err != nil || !bytes.Equal(content, want) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
}

func TestUncertainContentIsRefused(t *testing.T) {
	archive := corpus.Pack(t, map[string][]byte{"file": corpus.Noise(1, 400000)})
	for name, c := range map[string]struct {
		change func(*registry)
		want   string
	}{
		"another table of contents": {func(r *registry) { r.contents = digest.FromString("x") }, "as the image says"},
		"no digest":                 {func(r *registry) { r.contents = "x" }, "digest"},
		"no eStargz":                {func(r *registry) { r.blob = r.blob[:len(r.blob)-10] }, "table of contents"},
		"no ranges": {func(r *registry) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				_, _ = w.Write(r.blob)
				return true
			}
		}, "200 OK"},
		"a password": {func(r *registry) {
			r.answer = func(w http.ResponseWriter, _ *http.Request) bool {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
		}, "refuses"},
		"nothing": {func(r *registry) { r.blob = nil }, "size"},
	} {
		r, source := serve(t, archive, 0, 0)
		c.change(r)
		dir := t.TempDir()
		if err := Make(t.Context(), filepath.Join(dir, "layer"), source, Login{}, r.contents, budget.Budget{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want an error with %q", name, err, c.want)
		}
		if there, err := os.ReadDir(dir); err != nil || len(there) > 0 {
			t.Errorf("%s: left %v, %v", name, there, err)
		}
	}
}

func TestBadTables(t *testing.T) {
	d := digest.FromString("x").String()
	for name, entries := range map[string][]*estargz.TOCEntry{
		"a chunk without a file":    {{Name: "a", Type: "chunk", ChunkDigest: d}},
		"a chunk of another file":   {{Name: "a", Type: "reg", Size: 2, ChunkSize: 1, ChunkDigest: d}, {Name: "b", Type: "chunk", ChunkOffset: 1, ChunkDigest: d}},
		"a file that is not whole":  {{Name: "a", Type: "reg", Size: 2, ChunkSize: 1, ChunkDigest: d}},
		"a gap":                     {{Name: "a", Type: "reg", Size: 3, ChunkSize: 1, ChunkDigest: d}, {Name: "a", Type: "chunk", ChunkOffset: 2, ChunkDigest: d}},
		"too long a chunk":          {{Name: "a", Type: "reg", Size: 2, ChunkSize: 3, ChunkDigest: d}},
		"a huge chunk":              {{Name: "a", Type: "reg", Size: 1 << 40, ChunkDigest: d}},
		"a chunk beyond the end":    {{Name: "a", Type: "reg", Size: 1, Offset: 1000, ChunkDigest: d}},
		"a chunk before the begin":  {{Name: "a", Type: "reg", Size: 1, Offset: -1, ChunkDigest: d}},
		"a chunk without a digest":  {{Name: "a", Type: "reg", Size: 1}},
		"a size that is impossible": {{Name: "a", Type: "reg", Size: -1, ChunkDigest: d}},
		"an unknown type":           {{Name: "a", Type: "odd"}},
		"a name that leads nowhere": {{Name: "a", Type: "hardlink", LinkName: ""}, {Name: "", Type: "reg"}},
		"an impossible time":        {{Name: "a", Type: "reg", ModTime3339: "yesterday"}},
	} {
		if chunks, err := lay(filepath.Join(t.TempDir(), "layer"), &estargz.JTOC{Version: 1, Entries: entries}, 1000, budget.Budget{}.Layer(0)); err == nil {
			t.Errorf("%s became %v", name, chunks)
		}
	}
}

// TestInvalidTables: invalid tables of contents are refused before anything is made
// from them.
func TestInvalidTables(t *testing.T) {
	for name, text := range map[string]string{
		"no entry":              `{"version":1,"entries":[null]}`,
		"no table":              `[]`,
		"another version":       `{"version":2}`,
		"a huge file":           `{"version":1,"entries":[{"name":"a","type":"reg","size":9000000000000000000}]}`,
		"huge files together":   `{"version":1,"entries":[{"name":"a","type":"reg","size":100000000000},{"name":"b","type":"reg","size":100000000000}]}`,
		"a size of less than 0": `{"version":1,"entries":[{"name":"a","type":"reg","size":-1}]}`,
	} {
		if table, err := parseTable([]byte(text)); err == nil {
			t.Errorf("%s: %v", name, table)
		}
	}
}

func FuzzTable(f *testing.F) {
	for _, text := range []string{
		`{"version":1,"entries":[null]}`,
		`{"version":1,"entries":[{"name":"a/","type":"dir","modtime":"2020-01-01T00:00:00Z"},{"name":"a/b","type":"reg","size":2,"chunkSize":1,"chunkDigest":"` + digest.FromString("x").String() + `"},{"name":"a/b","type":"chunk","offset":5,"chunkOffset":1,"chunkDigest":"` + digest.FromString("y").String() + `"},{"name":"c","type":"hardlink","linkName":"a/b","xattrs":{"user.x":"eA=="}}]}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		table, err := parseTable(text)
		if err != nil {
			return
		}
		var size int64
		for _, e := range table.Entries {
			size += max(0, e.Size)
		}
		if size > 1<<30 {
			return // its checksums take long
		}
		path := filepath.Join(t.TempDir(), "layer")
		chunks, err := lay(path, table, 1000, budget.Budget{}.Layer(0))
		if err != nil {
			return
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chunks {
			if c.Offset < 0 || c.End <= c.Offset || c.End > 1000 || c.Size <= 0 || c.At < erofs.BlockSize || c.At+c.Size > info.Size() {
				t.Errorf("chunk %+v of %d bytes", c, info.Size())
			}
		}
	})
}

func TestWrongContentIsNeverServed(t *testing.T) {
	want := corpus.Noise(1, 400000)
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"file": want}), 0, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	_, image := open(t, path)
	good := r.blob
	bad := slices.Clone(good)
	// The damage is after the header of the stream, in incompressible content.
	bad[len(bad)/2] ^= 1
	asked := 0
	r.onRequest(func(w http.ResponseWriter, request *http.Request) bool {
		if asked++; asked == 1 {
			http.ServeContent(w, request, "", time.Time{}, bytes.NewReader(bad))
			return true
		}
		if asked == 2 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	if content, err := read(image, "file"); err != nil || !bytes.Equal(content, want) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	if asked < 3 {
		t.Errorf("%d requests", asked)
	}
}

// TestWrongContentBlocksNothingElse: content that is always wrong does not keep
// the rest from arriving.
func TestWrongContentBlocksNothingElse(t *testing.T) {
	first, second := corpus.Noise(1, 3<<20), corpus.Noise(2, 3<<20)
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"first": first, "second": second}), 1<<20, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, image := open(t, path)
	bad := slices.Clone(r.blob)
	bad[1<<20] ^= 1
	r.onRequest(func(w http.ResponseWriter, request *http.Request) bool {
		http.ServeContent(w, request, "", time.Time{}, bytes.NewReader(bad))
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Fetch(ctx) }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		f.mu.Lock()
		next, others, wrong := f.next()
		f.mu.Unlock()
		if next < 0 && !others && len(wrong) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the next is %d, wrong are %v", next, wrong)
		}
	}
	if content, err := read(image, "second"); err != nil || !bytes.Equal(content, second) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestRegistryIsGone: when the registry refuses content that it served before, a
// read fails, and the next one sends another request.
func TestRegistryIsGone(t *testing.T) {
	want := corpus.Noise(1, 400000)
	r, source := serve(t, corpus.Pack(t, map[string][]byte{"file": want}), 0, 0)
	path := filepath.Join(t.TempDir(), "layer")
	if err := Make(t.Context(), path, source, Login{}, r.contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	f, image := open(t, path)
	r.onRequest(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusNotFound)
		return true
	})
	if _, err := read(image, "file"); !errors.Is(err, errRefused) {
		t.Errorf("read: %v", err)
	}
	if err := f.Fetch(t.Context()); !errors.Is(err, errRefused) {
		t.Errorf("in the background: %v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := f.Fetch(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	r.onRequest(nil)
	if content, err := read(image, "file"); err != nil || !bytes.Equal(content, want) {
		t.Errorf("%d bytes, %v", len(content), err)
	}
}

// Chunks of one stream in the wrong order would have the stream unpacked for each.
func TestChunksInWrongOrderAreRefused(t *testing.T) {
	at := func(offset, inner int64) chunk { return chunk{Offset: offset, Inner: inner, Size: 10} }
	for name, c := range map[string]struct {
		chunks []chunk
		right  bool
	}{
		"none":                       {nil, true},
		"one":                        {[]chunk{at(5, 5)}, true},
		"in streams of their own":    {[]chunk{at(0, 512), at(7, 0), at(9, 0)}, true},
		"in one stream":              {[]chunk{at(0, 0), at(0, 10), at(0, 512)}, true},
		"last stream first":          {[]chunk{at(9, 0), at(0, 0)}, false},
		"last of the stream first":   {[]chunk{at(0, 10), at(0, 0)}, false},
		"the same twice":             {[]chunk{at(0, 0), at(0, 0)}, false},
		"overlapping in one stream":  {[]chunk{at(0, 0), at(0, 9)}, false},
		"a stream between two parts": {[]chunk{at(0, 0), at(5, 0), at(0, 10)}, false},
	} {
		if err := checkOrder(c.chunks); (err == nil) != c.right {
			t.Errorf("chunks %s: %v", name, err)
		}
	}
	table := &estargz.JTOC{Version: 1}
	for i, offset := range []int64{9, 1} {
		table.Entries = append(table.Entries, &estargz.TOCEntry{Type: "reg", Name: fmt.Sprint(i), Size: 1, Offset: offset, ChunkDigest: digest.FromString("").String()})
	}
	if _, err := lay(filepath.Join(t.TempDir(), "layer"), table, 20, budget.Budget{}.Table(1, 20)); err == nil {
		t.Error("a layer is laid out by such a table")
	}
}
