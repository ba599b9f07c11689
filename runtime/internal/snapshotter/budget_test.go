package snapshotter

import (
	"archive/tar"
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
	"berth.dev/berth/runtime/internal/budget"
)

// Layers that are unpacked into a directory have the same budget as layers in one file.
func TestLayersHaveABudget(t *testing.T) {
	var layer bytes.Buffer
	if err := tar.NewWriter(&layer).WriteHeader(&tar.Header{Name: "large", Typeflag: tar.TypeReg, Size: 1 << 40}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, unpacked, made := filepath.Join(dir, "layer.tar"), filepath.Join(dir, "unpacked"), filepath.Join(dir, "made")
	if err := errors.Join(os.WriteFile(path, layer.Bytes(), 0o600), os.Mkdir(unpacked, 0o700)); err != nil {
		t.Fatal(err)
	}
	at, err := archived.Part{Path: path, Size: int64(layer.Len())}.Apply()
	if err != nil {
		t.Fatal(err)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(layer.Bytes())}
	for _, m := range []mount.Mount{{Type: "bind", Source: unpacked, Options: []string{"rbind", "rw"}}, {Type: LayerMount, Source: made}} {
		_, err := Differ{}.Apply(t.Context(), desc, []mount.Mount{m}, at)
		if !errors.Is(err, budget.ErrExceeded) || !strings.Contains(err.Error(), desc.Digest.String()) {
			t.Errorf("a layer as %s: %v", m.Type, err)
		}
	}
}

// Layers that fit one by one do not fit together if they are applied under one lease, as
// the layers of a pull are.
func TestLayersOfALeaseHaveOneBudget(t *testing.T) {
	var layer bytes.Buffer
	if err := tar.NewWriter(&layer).WriteHeader(&tar.Header{Name: "large", Typeflag: tar.TypeReg, Size: 3 << 30}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "layer.tar")
	if err := os.WriteFile(path, layer.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	at, err := archived.Part{Path: path, Size: int64(layer.Len())}.Apply()
	if err != nil {
		t.Fatal(err)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromBytes(layer.Bytes())}
	place := []mount.Mount{{Type: LayerMount, Source: filepath.Join(dir, "made")}}
	d := Differ{Images: &budget.Images{}}
	// The content of the file is missing.
	for _, c := range []struct {
		lease string
		full  bool
	}{{"a", false}, {"b", false}, {"a", true}, {"c", false}} {
		_, err := d.Apply(leases.WithLease(t.Context(), c.lease), desc, place, at)
		if err == nil || errors.Is(err, budget.ErrExceeded) != c.full {
			t.Errorf("a layer under lease %s: %v", c.lease, err)
		}
	}
}
