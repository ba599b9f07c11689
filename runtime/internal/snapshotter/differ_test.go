package snapshotter

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
	"berth.dev/berth/runtime/internal/idmap"
)

// A layer in an archive is read from the archive. The test has no content store to
// ask.
func TestArchiveLayer(t *testing.T) {
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
	// A truncated layer is an error.
	if err := os.Truncate(path, 6+desc.Size-9); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Apply(t.Context(), desc, place, apply); err == nil {
		t.Error("a layer was made of an archive that was cut off")
	}
	if _, err := os.Lstat(made); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it left %v", err)
	}
	// Apply refuses content that is not a layer.
	desc.MediaType = ocispec.MediaTypeImageConfig
	if _, err := d.Apply(t.Context(), desc, []mount.Mount{{Type: "bind", Source: dir}}); !errdefs.IsNotImplemented(err) {
		t.Errorf("a configuration for another snapshotter: %v", err)
	}
}

// Owners without an ID on this node are reported once, and shown as nobody's. The
// image of a layer keeps them for other nodes.
func TestOwnersFitThisNode(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to change owners")
	}
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	for name, uid := range map[string]int{"known": 1000, "foreign": 1_000_650_000} {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Uid: uid, Gid: 7}); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	path, unpacked, made := filepath.Join(dir, "image.tar"), filepath.Join(dir, "unpacked"), filepath.Join(dir, "made")
	if err := errors.Join(archive.Close(), os.WriteFile(path, layer.Bytes(), 0o600), os.Mkdir(unpacked, 0o700)); err != nil {
		t.Fatal(err)
	}
	at, err := archived.Part{Path: path, Size: int64(layer.Len())}.Apply()
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	ids := []idmap.Extent{{First: 0, Count: 65536}}
	owners := Owners{IDs: idmap.Map{UIDs: ids, GIDs: ids}, Notice: func(text string) { said = append(said, text) }}
	d := Differ{Owners: owners}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(layer.Bytes())}
	for _, m := range []mount.Mount{{Type: "bind", Source: unpacked, Options: []string{"rbind", "rw"}}, {Type: LayerMount, Source: made}} {
		applied, err := d.Apply(t.Context(), desc, []mount.Mount{m}, at)
		if err != nil || applied.Digest != desc.Digest || applied.Size != int64(layer.Len()) {
			t.Errorf("%s: %+v, %v", m.Type, applied, err)
		}
	}
	for name, want := range map[string]uint32{"known": 1000, "foreign": idmap.Nobody} {
		info, err := os.Stat(filepath.Join(unpacked, name))
		if err != nil {
			t.Fatal(err)
		}
		if st := info.Sys().(*syscall.Stat_t); st.Uid != want || st.Gid != 7 {
			t.Errorf("%s belongs to %d:%d, want %d", name, st.Uid, st.Gid, want)
		}
	}
	// A node that did not convert the layer learns its owners from the layer's
	// file.
	owners.look(t.Context(), made)
	want := `an image has 1 file of users or groups that this node does not have, such as "foreign" of 1000650000:7; in pods such ids are 65534`
	if len(said) != 3 || said[0] != want || said[1] != want || said[2] != want {
		t.Errorf("it said %q", said)
	}
}
