// Package layerfile makes a layer's file, an EROFS image, from the blob of a
// registry or an archive. It does not decide where files are kept.
package layerfile

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/freespace"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layer"
)

// Made describes the uncompressed layer. Size is in bytes.
type Made struct {
	Digest digest.Digest
	Size   int64
}

// ErrTooLarge reports that a layer exceeds the permitted size.
var ErrTooLarge = errors.New("layer is too large")

// Convert makes the file of a layer at path, where no file may exist, from its blob,
// compressed or not.
//
// For a layer of more than limit uncompressed bytes the error wraps ErrTooLarge. With limit
// 0 the layer may use the space that the file system can spare. In either case the limits of
// most apply. Convert passes each header to see. The caller verifies the returned digest.
func Convert(ctx context.Context, path string, packed io.Reader, limit int64, most *budget.Layer, see ...func(*tar.Header)) (Made, error) {
	archive, err := imagestore.Decompress(packed, most)
	if err != nil {
		return Made{}, err
	}
	defer archive.Close()
	counted := &counter{ctx: ctx, from: archive, hash: sha256.New(), limit: cmp.Or(limit, math.MaxInt64)}
	if limit == 0 {
		guard, err := freespace.Watch(filepath.Dir(path))
		if err != nil {
			return Made{}, err
		}
		counted.from = guard.Reader(archive)
	}
	if err := Write(path, counted, most, see...); err != nil {
		return Made{}, err
	}
	return Made{digest.NewDigest(digest.SHA256, counted.hash), counted.size}, nil
}

// Write makes the file of a layer from its uncompressed archive, at a path where no file may
// exist. If it fails, it removes the file.
func Write(path string, archive io.Reader, most *budget.Layer, see ...func(*tar.Header)) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	if err := layer.Convert(archive, file, most, see...); err != nil {
		return err
	}
	// The digest covers the data after the end of the archive.
	_, err = io.Copy(io.Discard, archive)
	return err
}

// counter counts and hashes the bytes read through it. It fails beyond limit bytes,
// and once ctx has ended.
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
	if c.size > c.limit {
		return 0, fmt.Errorf("%w: more than %d bytes without its compression", ErrTooLarge, c.limit)
	}
	return n, err
}
