// Package layerfile makes the file of a layer, the EROFS image, of what a
// registry or an archive has of it. Where files are kept is not its business.
package layerfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layer"
)

// Made is what a layer was without its compression.
type Made struct {
	Digest digest.Digest
	Size   int64
}

// ErrTooLarge is of layers that do not fit into what is allowed.
var ErrTooLarge = errors.New("layer is too large")

// Convert makes the file of a layer, packed or not, at a path where there is
// none. A layer of more than limit bytes without its compression is refused; 0 is
// no limit. The caller knows which digest it has to have.
func Convert(ctx context.Context, path string, packed io.Reader, limit int64) (Made, error) {
	archive, err := imagestore.Decompress(packed)
	if err != nil {
		return Made{}, err
	}
	defer archive.Close()
	counted := &counter{ctx: ctx, from: archive, hash: sha256.New(), limit: limit}
	if err := Write(path, counted); err != nil {
		return Made{}, err
	}
	return Made{digest.NewDigest(digest.SHA256, counted.hash), counted.size}, nil
}

// Write makes the file of a layer of its archive, at a path where there is none.
func Write(path string, archive io.Reader) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err := layer.Convert(archive, file); err != nil {
		return err
	}
	// What follows the archive's end belongs to its digest.
	_, err = io.Copy(io.Discard, archive)
	return err
}

// counter knows how much was read, and its digest, until ctx ends.
type counter struct {
	ctx   context.Context
	from  io.Reader
	hash  hash.Hash
	size  int64
	limit int64
}

func (c *counter) Read(p []byte) (int, error) {
	if err := context.Cause(c.ctx); err != nil {
		return 0, err
	}
	n, err := c.from.Read(p)
	c.hash.Write(p[:n])
	c.size += int64(n)
	if c.limit > 0 && c.size > c.limit {
		return n, fmt.Errorf("%w: more than %d bytes without its compression", ErrTooLarge, c.limit)
	}
	return n, err
}
