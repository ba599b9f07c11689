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
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/labels"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/archived"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/inplace"
	"berth.dev/berth/runtime/internal/layerfile"
)

// Differ makes images of layers, for snapshots of a Snapshotter. For others it unpacks
// layers: containerd's own differs know nothing of archives, and write until the
// file system is full.
type Differ struct {
	Content content.Store
	// Folder is the snapshotter's, where layers may be that stand for others' files.
	Folder string
	// Cache is nil where there is none.
	Cache Publisher
	// Unpublished receives the reason why a layer is not put into it.
	Unpublished func(error)
	Owners
}

// Publisher is a Cache that takes layers, too.
type Publisher interface {
	Cache
	Publish(d digest.Digest, from string) (path string, err error)
}

// Compare is not there: nobody saves containers here.
func (d Differ) Compare(context.Context, []mount.Mount, []mount.Mount, ...diff.Opt) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, fmt.Errorf("compare snapshots: %w", errdefs.ErrNotImplemented)
}

// Apply writes the image of a layer, and returns what the layer was without its
// compression: the caller knows which digest that has to have.
func (d Differ) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	at, lies, err := archived.Of(ctx, desc, opts)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	var blobs content.Provider = d.Content
	if lies {
		blobs = at
		desc.Size = at.Size // a manifest may say anything
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
		// It was packed by no program.
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
	made, err := layerfile.Convert(ctx, mounts[0].Source, content.NewReader(blob), blob.Size(), 0, func(header *tar.Header) {
		// The image keeps its owners, since others may read it; its mounts fit them.
		misfits.Fit(header.Name, header.Uid, header.Gid)
	})
	if err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("convert layer %s: %w", desc.Digest, err)
	}
	d.tell(&misfits)
	applied := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Size: made.Size, Digest: made.Digest}
	if d.Cache != nil {
		// For others: whoever is here waits for no copy.
		go d.publish(context.WithoutCancel(ctx), applied.Digest, mounts[0].Source)
	}
	return applied, nil
}

func (d Differ) publish(ctx context.Context, layer digest.Digest, path string) {
	// The image may be removed meanwhile, and its file with it.
	if _, err := d.Cache.Publish(layer, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.G(ctx).WithError(err).Warn("a layer is not put into the cache")
		d.Unpublished(err)
	}
}

// fromCache uses a layer of the cache, if it has it and the layer's digest
// without compression is known before it is read.
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
