package imagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/freespace"
)

// ReadArchive puts all blobs of an archive, or of a SIF file, into a store, and returns the index of
// its images. The store is on the file system of dir; ReadArchive leaves a part of that free.
func ReadArchive(ctx context.Context, store content.Store, dir string, a Archive) (index ocispec.Index, err error) {
	file, err := os.Open(a.Path)
	if err != nil {
		return index, fmt.Errorf("open image archive: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return index, fmt.Errorf("open image archive: %w", err)
	}
	guard, err := freespace.Watch(dir)
	if err != nil {
		return index, fmt.Errorf("read image archive %s: %w", a.Path, err)
	}
	if isSIF(file) {
		if index, err = readSIF(ctx, store, guard, file, a.Budget); err != nil {
			err = fmt.Errorf("read SIF image %s: %w", a.Path, err)
		}
		return index, err
	}
	most := a.Budget.Layer(info.Size())
	packed := io.Reader(file)
	if !info.Mode().IsRegular() { // a pipe has no size
		most = a.Budget.Stream(math.MaxInt64)
		packed = most.Packed(file)
	}
	reader, err := Decompress(packed, most)
	if err != nil {
		return index, fmt.Errorf("read image archive %s: %w", a.Path, err)
	}
	defer reader.Close()
	checked := bounded(guard.Reader(reader), most)
	defer checked.Close()
	desc, err := archive.ImportIndex(ctx, boundedStore{store, most}, checked)
	if err != nil {
		return index, fmt.Errorf("read image archive %s (docker save, podman save, OCI layouts and SIF are understood): %w", a.Path, err)
	}
	text, err := content.ReadBlob(ctx, Texts{store, most}, desc)
	if err == nil {
		err = json.Unmarshal(text, &index)
	}
	if err != nil {
		return index, fmt.Errorf("read index of image archive %s: %w", a.Path, err)
	}
	return index, nil
}

// Images returns the images of an archive for a platform, with the names that they
// get. It calls visit with each manifest, which checks that the image is complete.
func Images(ctx context.Context, a Archive, index ocispec.Index, platform platforms.MatchComparer, visit func(context.Context, ocispec.Descriptor) error) ([]images.Image, error) {
	found, err := a.images(ctx, index, platform, visit)
	if err != nil {
		return nil, fmt.Errorf("read image archive %s: %w", a.Path, err)
	}
	return found, nil
}

func (a Archive) images(ctx context.Context, index ocispec.Index, platform platforms.MatchComparer, visit func(context.Context, ocispec.Descriptor) error) ([]images.Image, error) {
	var found []images.Image
	var foreign []string
	anonymous := 0
	for _, m := range index.Manifests {
		if m.Platform != nil && !platform.Match(*m.Platform) {
			foreign = append(foreign, platforms.Format(*m.Platform))
			continue
		}
		if err := visit(ctx, m); err != nil {
			if errdefs.IsNotFound(err) {
				return nil, fmt.Errorf("archive is not complete: %w", err)
			}
			return nil, fmt.Errorf("read manifest %s: %w", m.Digest, err)
		}
		name, named, err := a.imageName(m.Annotations)
		if err != nil {
			return nil, err
		}
		if !named {
			anonymous++
		}
		found = append(found, images.Image{Name: name, Target: m})
	}
	switch {
	case len(found) == 0 && len(foreign) > 0:
		return nil, fmt.Errorf("it holds images for %v, and none for the requested platform", slices.Compact(foreign))
	case len(found) == 0:
		return nil, errors.New("it holds no image")
	case a.Name != "" && len(found) > 1:
		return nil, fmt.Errorf("it holds %d images, so they cannot all be named %s: omit the name", len(found), a.Name)
	case anonymous > 1:
		return nil, fmt.Errorf("it holds %d images without a name: save them one by one", anonymous)
	}
	return found, nil
}
