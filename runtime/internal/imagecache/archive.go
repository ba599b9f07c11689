package imagecache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layercache"
)

// Import adds the images of an archive to the cache. The archive may be a folder
// with an OCI layout, which is read in place.
func (p *Populator) Import(ctx context.Context, a imagestore.Archive) (kept []layercache.Image, err error) {
	err = p.open(ctx, a, func(blobs content.Provider, found []images.Image) error {
		for _, img := range found {
			image, err := p.put(ctx, img.Name, img.Target, provided{blobs})
			if err != nil {
				return fmt.Errorf("import image %s from %s: %w", img.Name, a.Path, err)
			}
			kept = append(kept, image)
		}
		return nil
	})
	return kept, err
}

// open calls use with the blobs of an archive, and its images for the platform.
func (p *Populator) open(ctx context.Context, a imagestore.Archive, use func(content.Provider, []images.Image) error) (err error) {
	var blobs content.Provider
	a.Budget = p.Budget
	lying, index, err := imagestore.OpenInPlace(ctx, a)
	switch {
	case err != nil:
		return err
	case lying != nil:
		defer lying.Close()
		blobs = lying
	default:
		scratch, made := p.Cache.Scratch()
		if made != nil {
			return fmt.Errorf("make a place for the archive's content: %w", made)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(scratch)) }()
		store, opened := local.NewStore(scratch)
		if opened != nil {
			return fmt.Errorf("make a place for the archive's content: %w", opened)
		}
		blobs = store
		index, err = imagestore.ReadArchive(ctx, store, scratch, a)
	}
	if err != nil {
		return err
	}
	platform := platforms.Only(p.Platform)
	found, err := imagestore.Images(ctx, a, index, platform, func(ctx context.Context, m ocispec.Descriptor) error {
		return images.WalkNotEmpty(ctx, images.FilterPlatforms(children(blobs, p.Budget), platform), m)
	})
	if err != nil {
		return err
	}
	return use(blobs, found)
}

// children returns a handler that returns the children of a manifest or an index after it has
// verified the digest. Otherwise an index could contain itself, and the walk would not end.
func children(blobs content.Provider, b budget.Budget) images.HandlerFunc {
	return func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
		if images.IsIndexType(desc.MediaType) || images.IsManifestType(desc.MediaType) {
			if _, err := fetchText(ctx, provided{blobs}, desc, b); err != nil {
				return nil, err
			}
		}
		return images.Children(ctx, blobs, desc)
	}
}

// provided fetches blobs from a content store.
type provided struct{ content.Provider }

func (p provided) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	blob, err := p.ReaderAt(ctx, desc)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{content.NewReader(blob), blob}, nil
}
