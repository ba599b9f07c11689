package squashfs

import (
	"bytes"
	"fmt"
	"io"

	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"
)

const (
	// metaSize is the size of an unpacked metadata block in bytes.
	metaSize = 8 << 10
	// plainMeta and plainData are the flags of uncompressed blocks in the size of a metadata
	// block and of a data block.
	plainMeta = 1 << 15
	plainData = 1 << 24
	// maxKept bounds the number of metadata blocks kept in memory. They take 32 MiB.
	maxKept = 4096
)

// codec unpacks a block of at most maximum unpacked bytes. It may use the memory of
// into.
type codec func(into, packed []byte, maximum int) ([]byte, error)

// newCodec returns the codec with a number. It omits lzma and lzo, because nobody
// makes images with them.
func newCodec(kind uint16) (codec, error) {
	switch kind {
	case 1:
		return unpackZlib(), nil
	case 4:
		return unpackXZ, nil
	case 5:
		return unpackLZ4, nil
	case 6:
		decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBlock+metaSize))
		if err != nil {
			return nil, err
		}
		return func(into, packed []byte, maximum int) ([]byte, error) {
			all, err := decoder.DecodeAll(packed, into[:0])
			if err == nil && len(all) > maximum {
				err = fmt.Errorf("a block of more than %d bytes: %w", maximum, ErrCorrupt)
			}
			return all, err
		}, nil
	}
	name := map[uint16]string{2: "lzma", 3: "lzo"}[kind]
	if name == "" {
		return nil, fmt.Errorf("compression %d: %w", kind, ErrCorrupt)
	}
	return nil, fmt.Errorf("it is compressed with %s, which is not understood; gzip, xz, zstd and lz4 are", name)
}

func unpackZlib() codec {
	var reader io.ReadCloser
	return func(into, packed []byte, maximum int) (_ []byte, err error) {
		if reader == nil {
			reader, err = zlib.NewReader(bytes.NewReader(packed))
		} else {
			err = reader.(zlib.Resetter).Reset(bytes.NewReader(packed), nil)
		}
		if err != nil {
			reader = nil
			return nil, err
		}
		return fill(into, reader, maximum)
	}
}

// fill reads all of from, which may have at most maximum bytes.
func fill(into []byte, from io.Reader, maximum int) ([]byte, error) {
	if cap(into) <= maximum {
		into = make([]byte, maximum+1)
	}
	into = into[:maximum+1]
	n, err := io.ReadFull(from, into)
	switch {
	case err == nil:
		return nil, fmt.Errorf("a block of more than %d bytes: %w", maximum, ErrCorrupt)
	case err == io.EOF || err == io.ErrUnexpectedEOF: //nolint:errorlint // ReadFull's own, and not of a stream that is cut
		return into[:n], nil
	}
	return nil, err
}

// metaBlock is an unpacked metadata block, and the offset of the next one.
type metaBlock struct {
	data []byte
	next int64
}

// meta returns the metadata block at an offset in the image.
func (i *Image) meta(at int64) (metaBlock, error) {
	if block, found := i.kept[at]; found {
		return block, nil
	}
	var header [2]byte
	if err := i.readAt(header[:], at); err != nil {
		return metaBlock{}, err
	}
	size := int(order.Uint16(header[:]))
	plain := size&plainMeta != 0
	size &^= plainMeta
	packed := make([]byte, size)
	if size == 0 || size > metaSize {
		return metaBlock{}, fmt.Errorf("metadata of %d bytes: %w", size, ErrCorrupt)
	}
	if err := i.readAt(packed, at+2); err != nil {
		return metaBlock{}, err
	}
	block := metaBlock{packed, at + 2 + int64(size)}
	if !plain {
		unpacked, err := i.codec(i.metadata, packed, metaSize)
		if err != nil {
			return metaBlock{}, fmt.Errorf("unpack metadata at %d: %w", at, err)
		}
		// Keep a copy without the spare capacity of the codec's buffer.
		i.metadata, block.data = unpacked, bytes.Clone(unpacked)
	}
	if len(i.kept) >= maxKept {
		clear(i.kept)
	}
	i.kept[at] = block
	return block, nil
}

// cursor reads metadata across blocks.
type cursor struct {
	image *Image
	block metaBlock
	rest  []byte
}

// cursor returns a cursor in the metadata block at an offset in the image. The cursor begins
// offset bytes into the unpacked block.
func (i *Image) cursor(at int64, offset int) (*cursor, error) {
	block, err := i.meta(at)
	if err != nil {
		return nil, err
	}
	if offset > len(block.data) {
		return nil, fmt.Errorf("byte %d of %d in metadata: %w", offset, len(block.data), ErrCorrupt)
	}
	return &cursor{i, block, block.data[offset:]}, nil
}

func (c *cursor) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		block, err := c.image.meta(c.block.next)
		if err != nil {
			return 0, err
		}
		c.block, c.rest = block, block.data
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// take reads count bytes.
func (c *cursor) take(count int) ([]byte, error) {
	b := make([]byte, count)
	_, err := io.ReadFull(c, b)
	return b, err
}
