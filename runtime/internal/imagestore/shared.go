package imagestore

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/rootfs"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/lazy"
)

// Labels that give a snapshotter the layer of a snapshot and its final name.
// They are containerd's, which does not export them.
const (
	LayerLabel = "containerd.io/snapshot/diff-id"
	NameLabel  = "containerd.io/snapshot.ref"
)

// importInPlace imports the images of an archive without copying layers to the store. Like a
// pull from a registry, it does not read layers that other jobs have made. It reads the
// blobs of the remaining layers in place. It copies manifests and configurations, and checks
// their digests.
func (i *Importer) importInPlace(ctx context.Context, a Archive, from Lying, index ocispec.Index) (imported []Imported, err error) {
	begin := time.Now()
	t := Texts{i.store, a.Budget.Layer(0)}
	found, err := Images(ctx, a, index, platforms.Default(), func(ctx context.Context, m ocispec.Descriptor) error {
		if err := i.copyTexts(ctx, from, t, m); err != nil {
			return err
		}
		return i.labelBlobs(ctx, t, m)
	})
	if err != nil {
		return nil, err
	}
	for _, img := range found {
		err := i.bringLayers(ctx, from, t, img.Target)
		if err == nil {
			err = i.publish(ctx, img)
		}
		if err != nil {
			return imported, fmt.Errorf("import image %s from %s: %w", img.Name, a.Path, err)
		}
		imported = append(imported, Imported{Name: img.Name, Digest: img.Target.Digest.String(), Took: time.Since(begin)})
	}
	return imported, nil
}

// copyTexts puts all blobs of an image except its layers into the store.
func (i *Importer) copyTexts(ctx context.Context, from Lying, t Texts, m ocispec.Descriptor) error {
	return images.Walk(ctx, images.FilterPlatforms(images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsLayerType(desc.MediaType) {
			return nil, nil
		}
		if err := i.copy(ctx, from, desc); err != nil {
			return nil, err
		}
		return images.Children(ctx, t, desc)
	}), platforms.Default()), m)
}

func (i *Importer) copy(ctx context.Context, from Lying, desc ocispec.Descriptor) error {
	blob, err := from.ReaderAt(ctx, desc)
	if err != nil {
		return err
	}
	defer blob.Close()
	return content.WriteBlob(ctx, i.store, "archive-"+desc.Digest.String(), content.NewReader(blob), desc)
}

// bringLayers unpacks all layers of an image. Its manifest and configuration
// are in the store.
func (i *Importer) bringLayers(ctx context.Context, from Lying, t Texts, target ocispec.Descriptor) error {
	manifest, err := images.Manifest(ctx, t, target, platforms.Default())
	if err != nil {
		return err
	}
	ids, err := images.RootFS(ctx, t, manifest.Config)
	if err != nil {
		return err
	}
	layers := lazy.Layers(manifest)
	if len(ids) != len(layers) {
		return nil // unpacking reports the mistake
	}
	for k, layer := range layers {
		there := false
		var err error
		if i.shared {
			there, err = i.isThere(ctx, ids[:k], ids[k])
		}
		if err == nil && !there {
			err = i.bringLayer(ctx, from, ids[:k], rootfs.Layer{Diff: ocispec.Descriptor{Digest: ids[k]}, Blob: layer})
		}
		if err != nil {
			return fmt.Errorf("bring layer %s: %w", layer.Digest, err)
		}
	}
	return nil
}

// isThere reports whether the snapshotter has a layer on top of the layers below, the lowest
// first.
func (i *Importer) isThere(ctx context.Context, below []digest.Digest, id digest.Digest) (bool, error) {
	name := identity.ChainID(append(below[:len(below):len(below)], id)).String()
	key := fmt.Sprintf(snapshots.UnpackKeyFormat, rand.Text(), name)
	snapshotter := i.client.SnapshotService(i.snapshotter)
	_, err := snapshotter.Prepare(ctx, key, identity.ChainID(below).String(), snapshots.WithLabels(map[string]string{LayerLabel: id.String(), NameLabel: name}))
	if errdefs.IsAlreadyExists(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return false, snapshotter.Remove(ctx, key)
}

// bringLayer unpacks a missing layer. It reads the layer in place and checks it by
// its uncompressed digest.
func (i *Importer) bringLayer(ctx context.Context, from Lying, below []digest.Digest, layer rootfs.Layer) error {
	at, err := from.Part(layer.Blob.Digest)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("archive is not complete: %w", err)
	}
	if err != nil {
		return err
	}
	apply, err := at.Apply()
	if err != nil {
		return err
	}
	_, err = rootfs.ApplyLayerWithOpts(ctx, layer, below, i.client.SnapshotService(i.snapshotter), i.client.DiffService(), nil, []diff.ApplyOpt{apply})
	return err
}
