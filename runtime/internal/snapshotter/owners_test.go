package snapshotter

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/core/snapshots/storage"
	"github.com/containerd/containerd/v2/pkg/snapshotters"
	"github.com/containerd/errdefs"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/inplace"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/lazy"
)

// foreignLayer makes the file of a layer whose owners most nodes lack.
func foreignLayer(path string) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range []string{"app/first", "app/second"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Uid: 1_000_650_000, Gid: 5}); err != nil {
			return err
		}
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(w.Close(), layer.Convert(&archive, file, budget.Budget{}.Layer(0)), file.Close())
}

// fakeCache has every layer, all in one file.
type fakeCache string

func (c fakeCache) Take(digest.Digest) (string, error) { return string(c), nil }

func (c fakeCache) Publish(digest.Digest, string) (string, error) {
	return "", errdefs.ErrNotImplemented
}

type noContent struct{ content.Store }

func (noContent) Info(context.Context, digest.Digest) (content.Info, error) {
	return content.Info{}, errdefs.ErrNotFound
}

// fakeRemote makes layers whose content arrives later.
type fakeRemote struct{}

func (fakeRemote) Make(_ context.Context, path string, _ lazy.Layer) error { return foreignLayer(path) }

// TestForeignOwnersOfForeignLayers covers each kind of layer that this node has
// not converted: a cached layer, before it is fetched and when it is applied, a
// lazy layer, and a SIF file in place.
func TestForeignOwnersOfForeignLayers(t *testing.T) {
	var said []string
	ids := []idmap.Extent{{First: 0, Count: 65536}}
	owners := Owners{idmap.Map{UIDs: ids, GIDs: ids}, func(text string) { said = append(said, text) }}
	dir, d := t.TempDir(), digest.FromString("a layer")
	cached := filepath.Join(dir, "cached")
	if err := foreignLayer(cached); err != nil {
		t.Fatal(err)
	}
	target := func(name string) []mount.Mount {
		return []mount.Mount{{Type: LayerMount, Source: filepath.Join(dir, name)}}
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: d}
	prepare := func(cache Cache, remote Remote, labels map[string]string) error {
		root := t.TempDir()
		store, err := storage.NewMetaStore(filepath.Join(root, "metadata.db"))
		if err != nil {
			return err
		}
		s, err := New(root, store, noMounter{t}, cache, nil)
		if err != nil {
			return err
		}
		defer s.Close()
		s.Owners, s.Remote = owners, remote
		if _, err := s.Prepare(t.Context(), snapshots.UnpackKeyPrefix+"-1", "", snapshots.WithLabels(labels)); !errdefs.IsAlreadyExists(err) {
			return errors.Join(err, errors.New("the layer is not there at once"))
		}
		return nil
	}
	for name, use := range map[string]func() error{
		"cache, before it is fetched": func() error {
			return prepare(fakeCache(cached), nil, map[string]string{imagestore.LayerLabel: d.String(), imagestore.NameLabel: "layer"})
		},
		"cache, when it is applied": func() error {
			_, err := Differ{Owners: owners, Cache: fakeCache(cached), Content: noContent{}}.Apply(t.Context(), desc, target("applied"))
			return err
		},
		"comes later": func() error {
			return prepare(nil, fakeRemote{}, map[string]string{
				imagestore.NameLabel: "layer", snapshotters.TargetRefLabel: "image", snapshotters.TargetLayerDigestLabel: d.String(), estargz.TOCJSONDigestAnnotation: d.String(),
			})
		},
		"in place": func() error {
			made := filepath.Join(dir, "sif")
			if err := errors.Join(foreignLayer(made), os.WriteFile(made+".sif", nil, 0o600), inplace.Keep(made, filepath.Join(dir, "root"), d)); err != nil {
				return err
			}
			_, err := Differ{Owners: owners, Folder: filepath.Join(dir, "root")}.Apply(t.Context(), desc, target("placed"))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			said = nil
			if err := use(); err != nil {
				t.Fatal(err)
			}
			const want = `an image has 2 files of users or groups that this node does not have, such as "app/first" of 1000650000:5; in pods such ids are 65534`
			if len(said) != 1 || said[0] != want {
				t.Errorf("it said %q", said)
			}
		})
	}
}
