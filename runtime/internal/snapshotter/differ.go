package snapshotter

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/inplace"
	"berth.dev/berth/runtime/internal/layerfile"
)

// Differ converts layers to images, for snapshots of a Snapshotter. For snapshots
// of other snapshotters it unpacks layers: containerd's own differs cannot read
// layers from archives, and write until the file system is full.
type Differ struct {
	Content content.Store
	// Folder is the snapshotter's directory. It may contain layers that stand for
	// existing files, see package inplace.
	Folder string
	// Cache is nil if there is no cache.
	Cache Publisher
	// Budget bounds the layers. Images counts the layers of an image together, and is nil
	// if each layer counts only for itself.
	Budget budget.Budget
	Images *budget.Images
	// Unpublished receives the reason why a layer was not put into the cache.
	Unpublished func(error)
	Owners
}

// Publisher is a Cache that also accepts layers.
type Publisher interface {
	Cache
	Publish(d digest.Digest, from string) (path string, err error)
}

// Compare returns ErrNotImplemented, because containers are not saved as images.
func (d Differ) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, fmt.Errorf("compare snapshots: %w", errdefs.ErrNotImplemented)
}

// Apply writes the image of a layer. It returns a description of the uncompressed
// layer, and the caller verifies the digest.
func (d Differ) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	at, lies, err := archived.Of(ctx, desc, opts)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	var blobs content.Provider = d.Content
	if lies {
		blobs = at
		desc.Size = at.Size // the size in a manifest may be wrong
	}
	if _, err := images.DiffCompression(ctx, desc.MediaType); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("apply layer of type %s: %w", desc.MediaType, errdefs.ErrNotImplemented)
	}
	if len(mounts) != 1 || mounts[0].Type != LayerMount {
		return d.unpack(ctx, blobs, desc, mounts)
	}
	if placed, err := inplace.Place(d.Folder, desc.Digest, mounts[0].Source); placed || err != nil {
		if placed && err == nil {
			d.look(ctx, mounts[0].Source)
		}
		// The layer is not compressed.
		return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: desc.Digest, Size: desc.Size}, err
	}
	if applied, ok := d.fromCache(ctx, desc, mounts[0].Source); ok {
		return applied, nil
	}
	blob, err := blobs.ReaderAt(ctx, desc)
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("read layer %s: %w", desc.Digest, err)
	}
	defer blob.Close()
	misfits := idmap.Misfits{Map: d.IDs}
	made, err := layerfile.Convert(ctx, mounts[0].Source, content.NewReader(blob), 0, d.count(ctx, blob.Size()), func(header *tar.Header) {
		// The image keeps the owners, because other nodes may read it. Its mounts
		// fit them to this node.
		misfits.Fit(header.Name, header.Uid, header.Gid)
	})
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("convert layer %s: %w", desc.Digest, err)
	}
	d.report(&misfits)
	applied := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Size: made.Size, Digest: made.Digest}
	if d.Cache != nil {
		// Copy in the background, so that this caller does not wait.
		go d.publish(context.WithoutCancel(ctx), applied.Digest, mounts[0].Source)
	}
	return applied, nil
}

// count returns the count for a layer of a packed size. Layers that are applied under one
// lease count together: each pull of an image has a lease, and each import of an archive,
// whose images count as one.
func (d Differ) count(ctx context.Context, packed int64) *budget.Layer {
	most := d.Budget.Layer(packed)
	if lease, found := leases.FromContext(ctx); found && d.Images != nil {
		most.Of(d.Images.Of(lease))
	}
	return most
}

func (d Differ) publish(ctx context.Context, layer digest.Digest, path string) {
	// The image and its file may be removed meanwhile.
	if _, err := d.Cache.Publish(layer, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.G(ctx).WithError(err).Warn("a layer is not put into the cache")
		d.Unpublished(err)
	}
}

// fromCache links the cached layer to target, if the cache has the layer. It works only if
// the digest of the uncompressed layer is known without reading the layer.
func (d Differ) fromCache(ctx context.Context, desc ocispec.Descriptor, target string) (applied ocispec.Descriptor, ok bool) {
	if d.Cache == nil {
		return applied, false
	}
	uncompressed := desc.Digest
	if info, err := d.Content.Info(ctx, desc.Digest); err == nil && info.Labels[labels.LabelUncompressed] != "" {
		uncompressed = digest.Digest(info.Labels[labels.LabelUncompressed])
	}
	path, err := d.Cache.Take(uncompressed)
	if err == nil && path != "" {
		err = os.Symlink(path, target)
	}
	if err != nil {
		log.G(ctx).WithError(err).Warn("a layer is not taken from the cache")
	}
	if err != nil || path == "" {
		return applied, false
	}
	d.look(ctx, target)
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: uncompressed, Size: desc.Size}, true
}
