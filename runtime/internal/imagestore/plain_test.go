package imagestore

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/fuzzbound"
)

// entry is a file of an archive; one with a target is a link.
type entry struct {
	name, target string
	content      []byte
}

func pack(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		header := &tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.content))}
		if e.target != "" {
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.target
		}
		if err := w.WriteHeader(header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.content); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func encoded(t testing.TB, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func zipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, err := z.Write(content)
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func configOf(t testing.TB, layers ...[]byte) []byte {
	config := ocispec.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "amd64"}}
	for _, l := range layers {
		config.RootFS.DiffIDs = append(config.RootFS.DiffIDs, digest.FromBytes(l))
	}
	return encoded(t, config)
}

// saved returns an archive as docker save writes it. Older versions write a link
// for a repeated layer.
func saved(t testing.TB, layers ...[]byte) []byte {
	return pack(t, entry{name: "a/layer.tar", content: layers[0]}, entry{name: "b/layer.tar", content: layers[1]}, entry{name: "c/layer.tar", target: "../a/layer.tar"},
		entry{name: "config.json", content: configOf(t, layers[0], layers[1], layers[0])},
		entry{name: "manifest.json", content: encoded(t, []map[string]any{{
			"Config": "config.json", "RepoTags": []string{"app:1", "reg.test/app:2"}, "Layers": []string{"a/layer.tar", "b/layer.tar", "c/layer.tar"},
		}})})
}

// laidOut returns an OCI layout with the layer.
func laidOut(t testing.TB, layer []byte) []byte {
	blob := zipped(t, layer)
	var entries []entry
	put := func(mediaType string, content []byte) ocispec.Descriptor {
		desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(content), Size: int64(len(content))}
		entries = append(entries, entry{name: "blobs/sha256/" + desc.Digest.Encoded(), content: content})
		return desc
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: put(ocispec.MediaTypeImageConfig, configOf(t, layer)), Layers: []ocispec.Descriptor{put(ocispec.MediaTypeImageLayerGzip, blob)},
	}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{put(ocispec.MediaTypeImageManifest, encoded(t, manifest))}}
	index.Manifests[0].Annotations = map[string]string{ocispec.AnnotationRefName: "app:1"}
	return pack(t, append(entries, entry{name: "./index.json", content: encoded(t, index)},
		entry{name: "oci-layout", content: encoded(t, ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})})...)
}

// Reading in place gives the same result as reading from the beginning to the
// end.
func TestPlainEqualsFullRead(t *testing.T) {
	one, other := pack(t, entry{name: "one", content: []byte("1")}), pack(t, entry{name: "other", content: bytes.Repeat([]byte("2"), 5000)})
	for name, archive := range map[string][]byte{"docker save": saved(t, one, other), "an OCI layout": laidOut(t, other)} {
		t.Run(name, func(t *testing.T) {
			a := Archive{Path: filepath.Join(t.TempDir(), "app.tar")}
			if err := os.WriteFile(a.Path, archive, 0o600); err != nil {
				t.Fatal(err)
			}
			plain, index, err := OpenInPlace(t.Context(), a)
			if err != nil || plain == nil {
				t.Fatalf("%v, %v", plain, err)
			}
			defer plain.Close()
			dir := t.TempDir()
			store, err := local.NewStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			full, err := ReadArchive(t.Context(), store, dir, a)
			if err != nil {
				t.Fatal(err)
			}
			if len(index.Manifests) != len(full.Manifests) {
				t.Fatalf("%d images, want %d", len(index.Manifests), len(full.Manifests))
			}
			for i, m := range index.Manifests {
				want := full.Manifests[i]
				if m.Digest != want.Digest || m.Size != want.Size || m.MediaType != want.MediaType || m.Annotations[images.AnnotationImageName] != want.Annotations[images.AnnotationImageName] {
					t.Errorf("image %d: %+v, want %+v", i, m, want)
				}
				if (m.Platform == nil) != (want.Platform == nil) || m.Platform != nil && m.Platform.Architecture != want.Platform.Architecture {
					t.Errorf("image %d: platform %v, want %v", i, m.Platform, want.Platform)
				}
				blobs := 0
				if err := images.Walk(t.Context(), images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
					blobs++
					text, err := content.ReadBlob(ctx, plain, desc)
					if err != nil || digest.FromBytes(text) != desc.Digest {
						t.Errorf("%s: %d bytes, %v", desc.Digest, len(text), err)
					}
					if images.IsLayerType(desc.MediaType) {
						readsWhereItLies(t, plain, desc.Digest)
					}
					return images.Children(ctx, plain, desc)
				}), m); err != nil || blobs < 3 {
					t.Errorf("%d blobs, %v", blobs, err)
				}
			}
		})
	}
}

// readsWhereItLies checks that a layer can be read in place.
func readsWhereItLies(t *testing.T, from Lying, layer digest.Digest) {
	t.Helper()
	at, err := from.Part(layer)
	if err != nil {
		t.Fatal(err)
	}
	blob, err := at.ReaderAt(t.Context(), ocispec.Descriptor{})
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Close()
	if got, err := digest.FromReader(content.NewReader(blob)); err != nil || got != layer {
		t.Errorf("where %s lies is %s, %v", layer, got, err)
	}
}

// layoutFolder unpacks an OCI layout.
func layoutFolder(t *testing.T, layout []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for archive := tar.NewReader(bytes.NewReader(layout)); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		path := filepath.Join(dir, header.Name)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, text, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// A folder with an OCI layout gives the same result as an archive of it.
func TestLayoutFolder(t *testing.T) {
	a := Archive{Path: layoutFolder(t, laidOut(t, pack(t, entry{name: "one", content: []byte("1")})))}
	if a.isRoot() || !(Archive{Path: t.TempDir()}).isRoot() {
		t.Error("a layout and the unpacked root of an image are not told apart")
	}
	lying, index, err := OpenInPlace(t.Context(), a)
	if err != nil || len(index.Manifests) != 1 {
		t.Fatalf("%d images, %v", len(index.Manifests), err)
	}
	defer lying.Close()
	var layers []digest.Digest
	if err := images.Walk(t.Context(), images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsLayerType(desc.MediaType) {
			layers = append(layers, desc.Digest)
			readsWhereItLies(t, lying, desc.Digest)
		}
		return images.Children(ctx, lying, desc)
	}), index.Manifests[0]); err != nil || len(layers) != 1 {
		t.Fatalf("layers %v, %v", layers, err)
	}
	// Tools that keep blobs once make links of them.
	at, err := lying.Part(layers[0])
	elsewhere := filepath.Join(t.TempDir(), "blob")
	if err := errors.Join(err, os.Rename(at.Path, elsewhere), os.Symlink(elsewhere, at.Path)); err != nil {
		t.Fatal(err)
	}
	readsWhereItLies(t, lying, layers[0])
}

// Errors name the problem of a folder, and no read waits for a pipe or a
// device.
func TestWrongLayoutFolders(t *testing.T) {
	dir := layoutFolder(t, laidOut(t, pack(t, entry{name: "one", content: []byte("1")})))
	index := filepath.Join(dir, ocispec.ImageIndexFile)
	lying, _, err := OpenInPlace(t.Context(), Archive{Path: dir})
	if err != nil {
		t.Fatal(err)
	}
	for _, blob := range []digest.Digest{digest.FromString("nothing"), "sha256:../../oci-layout", "none"} {
		_, err := lying.Part(blob)
		if _, alike := lying.ReaderAt(t.Context(), ocispec.Descriptor{Digest: blob}); err == nil || alike == nil || errdefs.IsNotFound(err) != (blob.Validate() == nil) {
			t.Errorf("blob %s: %v, %v", blob, err, alike)
		}
	}
	pipe := digest.FromString("a pipe")
	if err := unix.Mkfifo(filepath.Join(dir, ocispec.ImageBlobsDir, "sha256", pipe.Encoded()), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lying.ReaderAt(t.Context(), ocispec.Descriptor{Digest: pipe}); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("a pipe for a blob: %v", err)
	}
	for why, put := range map[string]func() error{
		"no such file":    func() error { return nil },
		"is not a file":   func() error { return unix.Mkfifo(index, 0o600) },
		"more than ":      func() error { return errors.Join(os.WriteFile(index, nil, 0o600), os.Truncate(index, 1<<40)) },
		"unexpected end ": func() error { return os.WriteFile(index, []byte("{"), 0o600) },
	} {
		if err := errors.Join(os.RemoveAll(index), put()); err != nil {
			t.Fatal(err)
		}
		if _, _, err := OpenInPlace(t.Context(), Archive{Path: dir}); err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), dir) {
			t.Errorf("want %q: %v", why, err)
		}
	}
}

// Archives in another form, or incomplete ones, are left to the reader of whole
// archives.
func TestPlainLeavesOtherForms(t *testing.T) {
	layer := pack(t, entry{name: "file", content: []byte("1")})
	whole := saved(t, layer, layer)
	for name, archive := range map[string][]byte{
		"compressed": zipped(t, whole), "with a compressed layer": saved(t, zipped(t, layer), layer),
		"cut": whole[:len(whole)/2], "nothing": nil, "no archive": bytes.Repeat([]byte("text "), 1000), "no image": layer,
		"a layout of another version": pack(t, entry{name: "oci-layout", content: []byte(`{"imageLayoutVersion":"9"}`)}),
		"a layer that is not there": pack(t, entry{name: "config.json", content: configOf(t, layer)},
			entry{name: "manifest.json", content: []byte(`[{"Config":"config.json","Layers":["a"]}]`)}),
		"another number of layers": pack(t, entry{name: "config.json", content: configOf(t)}, entry{name: "a", content: layer},
			entry{name: "manifest.json", content: []byte(`[{"Config":"config.json","Layers":["a"]}]`)}),
	} {
		path := filepath.Join(t.TempDir(), "app.tar")
		if err := os.WriteFile(path, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		if plain, _, err := OpenInPlace(t.Context(), Archive{Path: path}); err != nil || plain != nil {
			t.Errorf("%s: %v, %v", name, plain, err)
		}
	}
	if _, _, err := OpenInPlace(t.Context(), Archive{Path: filepath.Join(t.TempDir(), "none.tar")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

func TestPlainHasNothingElse(t *testing.T) {
	p := newPlain(bytes.NewReader(laidOut(t, pack(t))), budget.Budget{}.Layer(0))
	if _, err := p.index(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReaderAt(t.Context(), ocispec.Descriptor{Digest: digest.FromString("something")}); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
}

func FuzzPlain(f *testing.F) {
	layer := pack(f, entry{name: "file", content: []byte("1")})
	f.Add(saved(f, layer, layer))
	f.Add(laidOut(f, layer))
	f.Fuzz(func(t *testing.T, archive []byte) {
		fuzzbound.Watch(t)
		p := newPlain(bytes.NewReader(archive), budget.Budget{}.Layer(0))
		index, err := p.index(t.Context())
		if err != nil {
			return
		}
		for _, m := range index.Manifests {
			_, _ = images.Children(t.Context(), p, m)
		}
		found, err := Images(t.Context(), Archive{Path: "app.tar"}, index, platforms.All, func(context.Context, ocispec.Descriptor) error { return nil })
		for _, image := range found {
			if again, wrong := normalize(image.Name); err == nil && (wrong != nil || again != image.Name) {
				t.Errorf("%q is no full name: %q, %v", image.Name, again, wrong)
			}
		}
		for d, part := range p.blobs {
			blob, err := p.ReaderAt(t.Context(), ocispec.Descriptor{Digest: d})
			if err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, content.NewReader(blob)); err != nil || n != part.size {
				t.Errorf("%d of %d bytes, %v", n, part.size, err)
			}
		}
	})
}
