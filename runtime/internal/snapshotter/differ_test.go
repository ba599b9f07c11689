package snapshotter

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
)

// A layer that lies in an archive is made of what is there: there is no store here that
// could be asked.
func TestLayerOfAnArchive(t *testing.T) {
	var layer, packed bytes.Buffer
	archive, zipped := tar.NewWriter(&layer), gzip.NewWriter(&packed)
	err := archive.WriteHeader(&tar.Header{Name: "file", Mode: 0o644})
	if err = errors.Join(err, archive.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = zipped.Write(layer.Bytes())
	if err = errors.Join(err, zipped.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, made := filepath.Join(dir, "image.tar"), filepath.Join(dir, "made")
	if err := os.WriteFile(path, append([]byte("header"), packed.Bytes()...), 0o600); err != nil {
		t.Fatal(err)
	}
	apply, err := archived.Part{Path: path, Offset: 6, Size: int64(packed.Len())}.Apply()
	if err != nil {
		t.Fatal(err)
	}
	d := Differ{Folder: filepath.Join(dir, "snapshotter")}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: digest.FromBytes(packed.Bytes()), Size: int64(packed.Len())}
	place := []mount.Mount{{Type: LayerMount, Source: made}}
	applied, err := d.Apply(t.Context(), desc, place, apply)
	if err != nil || applied.Digest != digest.FromBytes(layer.Bytes()) {
		t.Fatalf("%+v, %v", applied, err)
	}
	if err := os.Remove(made); err != nil {
		t.Fatal(err)
	}
	// What is cut off makes none.
	if err := os.Truncate(path, 6+desc.Size-9); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Apply(t.Context(), desc, place, apply); err == nil {
		t.Error("a layer was made of an archive that was cut off")
	}
	if _, err := os.Lstat(made); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it left %v", err)
	}
	// Others' layers of the store are for others.
	if _, err := d.Apply(t.Context(), desc, []mount.Mount{{Type: "bind", Source: dir}}); !errdefs.IsNotImplemented(err) {
		t.Errorf("a layer of the store for another snapshotter: %v", err)
	}
}
