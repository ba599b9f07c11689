package imagecache

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/layercache"
)

// serveLarge starts a registry with an image whose layer is large enough to keep a
// partial download.
func serveLarge(t *testing.T) (*registry, *httptest.Server, ocispec.Descriptor) {
	t.Helper()
	content := make([]byte, 3*resumable)
	rand.NewChaCha8([32]byte{1}).Read(content)
	var layer ocispec.Descriptor
	r, server := serve(t, func(r *registry, i *image) {
		blob, id := packed(t, content)
		layer = r.put(ocispec.MediaTypeImageLayerGzip, blob)
		i.manifest.Layers[0], i.config.RootFS.DiffIDs[0] = layer, id
	})
	return r, server, layer
}

func partialOf(dir string, blob ocispec.Descriptor) string {
	return filepath.Join(dir, "layers-1", "partial", blob.Digest.Encoded())
}

// sizeOf returns the size of a blob's partial download.
func sizeOf(t *testing.T, dir string, blob ocispec.Descriptor) int {
	t.Helper()
	info, err := os.Stat(partialOf(dir, blob))
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Size())
}

// awaitHalf returns when half of a blob has been downloaded.
func awaitHalf(t *testing.T, dir string, blob ocispec.Descriptor) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if info, err := os.Stat(partialOf(dir, blob)); err == nil && info.Size() == blob.Size/2 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("half of the layer has not come")
		}
	}
}

// forget resets the count of sent bytes, once half of the blob was counted. The
// client may receive the bytes before they are counted.
func (r *registry) forget(t *testing.T, blob ocispec.Descriptor) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		r.mu.Lock()
		counted := r.sent[blob.Digest] == int(blob.Size/2)
		if counted {
			r.sent[blob.Digest] = 0
		}
		r.mu.Unlock()
		if counted {
			return
		}
		if time.Now().After(end) {
			t.Fatal("half of the layer was not sent")
		}
	}
}

const (
	envPullFrom = "BERTH_TEST_PULL_FROM"
	envPullTo   = "BERTH_TEST_PULL_TO"
)

// TestPullOfAnotherImage runs a pull in a process that another test kills.
func TestPullOfAnotherImage(t *testing.T) {
	if os.Getenv(envPullFrom) == "" {
		t.Skip("it is part of TestPullIsResumed")
	}
	p, _ := newPopulator(t, 1<<30)
	cache, err := layercache.Open(os.Getenv(envPullTo), "another", 1<<30, func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(err)
	}
	p.Cache = cache
	_, err = p.Pull(t.Context(), "reg.test/team/app:1", Registries{Servers: map[string]string{"reg.test": os.Getenv(envPullFrom)}})
	t.Errorf("it was not killed: %v", err)
}

// killed starts a pull, and kills it when half of the layer has arrived.
func killed(t *testing.T, dir string, server *httptest.Server, layer ocispec.Descriptor) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(self, "-test.run=^TestPullOfAnotherImage$")
	command.Env = append(os.Environ(), "TMPDIR="+t.TempDir(), envPullFrom+"="+server.URL, envPullTo+"="+dir)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	awaitHalf(t, dir, layer)
}

// stopped cancels a pull in the middle of the layer, as Ctrl-C does.
func stopped(t *testing.T, dir string, server *httptest.Server, layer ocispec.Descriptor) {
	t.Helper()
	cache, err := layercache.Open(dir, "another", 1<<30, func(text string) { t.Log(text) })
	if err != nil {
		t.Fatal(err)
	}
	p, _ := newPopulator(t, 1<<30)
	p.Cache = cache
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error {
		_, err := p.Pull(ctx, "reg.test/team/app:1", Registries{Servers: map[string]string{"reg.test": server.URL}})
		return err
	})
	awaitHalf(t, dir, layer)
	cancel()
	if err := group.Wait(); err == nil {
		t.Error("it was not stopped")
	}
	if err := cache.Close(); err != nil {
		t.Error(err)
	}
}

func TestPullIsResumed(t *testing.T) {
	for name, c := range map[string]struct {
		end func(*testing.T, string, *httptest.Server, ocispec.Descriptor)
		// change modifies the partial download or the registry.
		change func(t *testing.T, path string, r *registry)
		// want is the number of bytes fetched after that, given the layer's size
		// and the existing part; nil if it depends on when the client
		// disconnects.
		want func(size, before int) int
	}{
		"after kill -9": {end: killed, want: func(size, before int) int { return size - before }},
		"after Ctrl-C":  {end: stopped, want: func(size, before int) int { return size - before }},
		"with a registry that knows no ranges": {
			end:    stopped,
			change: func(_ *testing.T, _ string, r *registry) { r.whole = true },
			want:   func(size, _ int) int { return size },
		},
		"with a registry that refuses ranges": {
			end: stopped,
			change: func(_ *testing.T, _ string, r *registry) {
				r.ranges = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusRequestedRangeNotSatisfiable) }
			},
			want: func(size, _ int) int { return size },
		},
		"with a proxy that knows ranges by name only": {
			end: stopped,
			change: func(_ *testing.T, path string, r *registry) {
				blob := r.blobs[digest.NewDigestFromEncoded(digest.SHA256, filepath.Base(path))]
				r.ranges = func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Range", fmt.Sprintf("bytes 0-%d/%d", len(blob)-1, len(blob)))
					w.Header().Set("Content-Length", strconv.Itoa(len(blob)))
					w.WriteHeader(http.StatusPartialContent)
					_, _ = w.Write(blob)
				}
			},
		},
		"where a part is damaged": {
			end: stopped,
			change: func(t *testing.T, path string, _ *registry) {
				file, err := os.OpenFile(path, os.O_WRONLY, 0)
				if err == nil {
					_, err = file.WriteAt(make([]byte, 4096), 100_000)
					file.Close()
				}
				if err != nil {
					t.Fatal(err)
				}
			},
			want: func(size, before int) int { return size - before + size },
		},
		"where all was there": {
			end: stopped,
			change: func(t *testing.T, path string, r *registry) {
				blob := r.blobs[digest.NewDigestFromEncoded(digest.SHA256, filepath.Base(path))]
				if err := os.WriteFile(path, blob, 0o600); err != nil {
					t.Fatal(err)
				}
			},
			want: func(int, int) int { return 0 },
		},
		"where too much was there": {
			end: stopped,
			change: func(t *testing.T, path string, r *registry) {
				if err := os.Truncate(path, 10*resumable); err != nil {
					t.Fatal(err)
				}
			},
			want: func(size, _ int) int { return size },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, server, layer := serveLarge(t)
			r.held = layer.Digest
			p, dir := newPopulator(t, 1<<30)
			c.end(t, dir, server, layer)
			if c.change != nil {
				c.change(t, partialOf(dir, layer), r)
			}
			before := sizeOf(t, dir, layer)
			r.forget(t, layer)
			var came int64
			p.Progress = func(more, _ int64) { came += more } // bytes of one layer
			img, err := p.pullFrom(t, server, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, missing := p.Cache.Size(img); missing > 0 {
				t.Errorf("%d layers are missing", missing)
			}
			if err := p.Cache.VerifyLayer(img.Layers[0]); err != nil {
				t.Error(err)
			}
			if came != layer.Size {
				t.Errorf("told of %d bytes, want %d", came, layer.Size)
			}
			server.Close() // waits until all bytes are counted
			if c.want != nil {
				if want := c.want(int(layer.Size), before); r.sent[layer.Digest] != want {
					t.Errorf("%d of %d bytes were there, then %d came; want %d", before, layer.Size, r.sent[layer.Digest], want)
				}
			}
			if _, err := os.Stat(partialOf(dir, layer)); !os.IsNotExist(err) {
				t.Errorf("left: %v", err)
			}
		})
	}
}

// A registry that refuses requests for a while does not harm the partial download.
func TestRefusedPullKeepsPartialContent(t *testing.T) {
	r, server, layer := serveLarge(t)
	r.held = layer.Digest
	p, dir := newPopulator(t, 1<<30)
	stopped(t, dir, server, layer)
	before := sizeOf(t, dir, layer)
	r.refused = layer.Digest
	if _, err := p.pullFrom(t, server, nil); err == nil {
		t.Error("it has come")
	}
	if now := sizeOf(t, dir, layer); now != before {
		t.Errorf("%d bytes are left of %d", now, before)
	}
	r.refused = ""
	if _, err := p.pullFrom(t, server, nil); err != nil {
		t.Error(err)
	}
}

// A pull that exceeds the budget keeps what has come for one with a higher budget, and does
// not fetch the layer a second time.
func TestPullBeyondBudgetKeepsPartialContent(t *testing.T) {
	var layer ocispec.Descriptor
	r, server := serve(t, func(r *registry, i *image) {
		content := make([]byte, 3*resumable)
		rand.NewChaCha8([32]byte{1}).Read(content)
		blob, id := packed(t, content, tar.Header{Name: strings.Repeat("d/", 2100), Typeflag: tar.TypeDir, Format: tar.FormatPAX})
		layer = r.put(ocispec.MediaTypeImageLayerGzip, blob)
		i.manifest.Layers[0], i.config.RootFS.DiffIDs[0] = layer, id
	})
	p, dir := newPopulator(t, 1<<30)
	if _, err := p.pullFrom(t, server, nil); !errors.Is(err, budget.ErrExceeded) {
		t.Fatal(err)
	}
	if kept := sizeOf(t, dir, layer); kept < resumable {
		t.Errorf("%d bytes are left", kept)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if sent := r.sent[layer.Digest]; sent > int(layer.Size) {
		t.Errorf("%d bytes were sent of %d", sent, layer.Size)
	}
}

// A layer whose kept part is damaged is fetched as a whole, and counts once for its image.
func TestSecondTryCountsOnce(t *testing.T) {
	content := make([]byte, 3*resumable)
	rand.NewChaCha8([32]byte{1}).Read(content)
	blob, id := packed(t, content)
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	p, dir := newPopulator(t, 1<<30)
	wrong := bytes.Clone(blob)
	wrong[len(wrong)-6] ^= 1 // in the checksum of gzip
	kept := partialOf(dir, layer)
	if err := errors.Join(os.MkdirAll(filepath.Dir(kept), 0o700), os.WriteFile(kept, wrong, 0o600)); err != nil {
		t.Fatal(err)
	}
	// Other layers of the image leave room for this one, but not for twice as much.
	image := &budget.Image{}
	others := budget.Budget{}.Layer(1).Of(image).Reader(blank{})
	if _, err := io.CopyN(io.Discard, others, 4<<30-5*resumable); err != nil {
		t.Fatal(err)
	}
	err := p.bringLayer(t.Context(), filepath.Join(t.TempDir(), "layer"), layer, id, connection{whole(blob)}, image, func(int) {})
	if err != nil {
		t.Error(err)
	}
	if _, err := io.CopyN(io.Discard, others, 2*resumable); !errors.Is(err, budget.ErrExceeded) {
		t.Errorf("beyond the limit: %v", err)
	}
}

// blank is a reader that leaves the buffer as it is.
type blank struct{}

func (blank) Read(p []byte) (int, error) { return len(p), nil }

// whole supplies a blob from any offset.
type whole []byte

func (w whole) Fetch(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
	return struct {
		io.ReadSeeker
		io.Closer
	}{bytes.NewReader(w), io.NopCloser(nil)}, nil
}

// all supplies a whole blob, and cancels the pull before the reader sees the end.
type all struct {
	blob []byte
	stop context.CancelFunc
}

func (a *all) Fetch(context.Context, ocispec.Descriptor) (io.ReadCloser, error) {
	return io.NopCloser(a), nil
}

func (a *all) Read(p []byte) (int, error) {
	if len(a.blob) == 0 {
		a.stop()
		return 0, context.Canceled
	}
	n := copy(p, a.blob)
	a.blob = a.blob[n:]
	return n, nil
}

// The download is kept even if all bytes have arrived, but the layer is not
// complete yet.
func TestPullStoppedAtEnd(t *testing.T) {
	r, _, layer := serveLarge(t)
	p, dir := newPopulator(t, 1<<30)
	ctx, cancel := context.WithCancel(t.Context())
	err := p.bringLayer(ctx, filepath.Join(t.TempDir(), "layer"), layer, digest.FromString("its content"), connection{&all{r.blobs[layer.Digest], cancel}}, nil, func(int) {})
	if err == nil || ctx.Err() == nil {
		t.Errorf("it was not stopped: %v", err)
	}
	if left := sizeOf(t, dir, layer); left != int(layer.Size) {
		t.Errorf("%d bytes are left of %d", left, layer.Size)
	}
}

// Two concurrent pulls of the same layer do not disturb each other, even when both
// continue a partial download.
func TestConcurrentPullsOfLayer(t *testing.T) {
	r, server, layer := serveLarge(t)
	r.held = layer.Digest
	dir := t.TempDir()
	stopped(t, dir, server, layer)
	var group errgroup.Group
	for _, job := range []string{"one", "other", "third"} {
		cache, err := layercache.Open(dir, job, 1<<30, func(text string) { t.Log(text) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cache.Close() })
		p, _ := newPopulator(t, 1<<30)
		p.Cache = cache
		group.Go(func() error {
			img, err := p.Pull(t.Context(), "reg.test/team/app:1", Registries{Servers: map[string]string{"reg.test": server.URL}})
			if err == nil {
				err = cache.VerifyLayer(img.Layers[0])
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if rest := left(t, dir); len(rest) > 0 {
		t.Errorf("left %v", rest)
	}
}
