package imagecache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/layercache"
)

// Export writes an image as an archive with an OCI layout. It makes the layers from
// their files in the cache. The content of the layers stays the same, but their digests and
// the digest of the image change.
func (p *Populator) Export(ctx context.Context, image layercache.Image, path string) error {
	source, err := p.cached(image)
	if err == nil {
		_, err = writeImages(ctx, path, Plain, []packable{source}, func(int64, int64) {})
	}
	if err != nil {
		return fmt.Errorf("export %s: %w", image.Name, err)
	}
	return nil
}

// cached returns an image in the cache whose layers are converted back to archives.
func (p *Populator) cached(image layercache.Image) (packable, error) {
	source := packable{name: image.Name}
	var err error
	if source.config, err = configuration(p.Cache, image); err != nil {
		return source, err
	}
	all := &budget.Image{}
	for _, id := range image.Layers {
		path, err := p.Cache.Take(id)
		if err == nil && path == "" {
			err = fmt.Errorf("%w: pull the image again", fs.ErrNotExist)
		}
		if err != nil {
			return source, fmt.Errorf("layer %s: %w", id, err)
		}
		info, err := os.Stat(path)
		if err != nil {
			return source, fmt.Errorf("layer %s: %w", id, err)
		}
		source.layers = append(source.layers, unpacked{id: id, size: info.Size(), write: func(_ context.Context, to io.Writer, count func(int)) error {
			return writeLayer(path, countedWriter{to, count}, p.Budget.Layer(info.Size()).Of(all))
		}})
	}
	return source, nil
}

// configuration returns the image's configuration as JSON.
func configuration(cache *layercache.Cache, image layercache.Image) ([]byte, error) {
	for _, desc := range image.Blobs {
		if images.IsConfigType(desc.MediaType) {
			return cache.Blob(desc.Digest)
		}
	}
	return nil, errors.New("its configuration is missing: pull the image again")
}

// writeLayer converts a layer's file to an archive.
func writeLayer(path string, to io.Writer, most *budget.Layer) error {
	image, file, err := erofs.OpenFile(path)
	if err != nil {
		return err
	}
	defer file.Close()
	image.MultiplyLimits(most.Times())
	return layer.Archive(image, to, most)
}

type countedWriter struct {
	to    io.Writer
	count func(int)
}

func (c countedWriter) Write(p []byte) (int, error) {
	c.count(len(p))
	return c.to.Write(p)
}

// packable is an image with access to its uncompressed layers.
type packable struct {
	name   string
	config []byte
	layers []unpacked
}

// unpacked is a layer that writes its archive.
type unpacked struct {
	id digest.Digest
	// size is about the number of bytes that count will receive.
	size  int64
	write func(ctx context.Context, to io.Writer, count func(int)) error
}
