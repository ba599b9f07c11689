// Package squashfs reads squashfs images, version 4.0, of whose bytes it trusts
// none: https://dr-emann.github.io/squashfs/. It walks through all of an image
// once, and says where content lies; to look for single files is not what it is for.
package squashfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// ErrCorrupt is of images that are not what they should be.
var ErrCorrupt = errors.New("squashfs image is corrupt")

const (
	magic      = 0x73717368
	superSize  = 96
	noFragment = math.MaxUint32
	noXattrs   = math.MaxUint32
	noTable    = math.MaxUint64
	// minBlock and maxBlock are what the format allows.
	minBlock = 4 << 10
	maxBlock = 1 << 20
	// maxEntries bounds what is read of one image, maxDepth its directories in
	// each other.
	maxEntries = 8 << 20
	maxDepth   = 2048
)

var order = binary.LittleEndian

// Image is an image that is read, by one at a time.
type Image struct {
	from      io.ReaderAt
	size      int64
	blockSize uint32
	inodes    uint32
	codec     codec
	// compression is the format's number of the codec.
	compression uint16

	root                           uint64
	inodeTable, dirTable           int64
	ids                            []uint32
	fragments                      []fragment
	xattrRefs                      []xattrRef
	xattrTable                     int64
	kept                           map[int64]metaBlock
	fragmentAt                     int64 // of the one in fragmentData
	fragmentData, packed, unpacked []byte
}

type fragment struct {
	start int64
	size  uint32
}

// Open returns the image in the first size bytes of from.
func Open(from io.ReaderAt, size int64) (*Image, error) {
	var b [superSize]byte
	if _, err := from.ReadAt(b[:], 0); err != nil {
		return nil, fmt.Errorf("read superblock: %w", unexpected(err))
	}
	i := &Image{
		from: from, size: size, inodes: order.Uint32(b[4:]), blockSize: order.Uint32(b[12:]),
		compression: order.Uint16(b[20:]), root: order.Uint64(b[32:]), kept: map[int64]metaBlock{}, fragmentAt: -1,
	}
	used := order.Uint64(b[40:])
	switch {
	case order.Uint32(b[0:]) != magic:
		return nil, fmt.Errorf("read superblock: no squashfs: %w", ErrCorrupt)
	case order.Uint16(b[28:]) != 4 || order.Uint16(b[30:]) != 0:
		return nil, fmt.Errorf("squashfs of version %d.%d: only 4.0 is understood", order.Uint16(b[28:]), order.Uint16(b[30:]))
	case i.blockSize < minBlock || i.blockSize > maxBlock || i.blockSize&(i.blockSize-1) != 0:
		return nil, fmt.Errorf("read superblock: blocks of %d bytes: %w", i.blockSize, ErrCorrupt)
	case used > uint64(size):
		return nil, fmt.Errorf("read superblock: %d bytes, of which %d are there: %w", used, size, ErrCorrupt)
	}
	i.size = int64(used)
	var err error
	if i.codec, err = newCodec(i.compression); err != nil {
		return nil, err
	}
	i.inodeTable, i.dirTable = int64(order.Uint64(b[64:])), int64(order.Uint64(b[72:]))
	if err := i.readIDs(order.Uint64(b[48:]), int(order.Uint16(b[26:]))); err != nil {
		return nil, fmt.Errorf("read users: %w", err)
	}
	if err := i.readFragments(order.Uint64(b[80:]), order.Uint32(b[16:])); err != nil {
		return nil, fmt.Errorf("read fragments: %w", err)
	}
	if err := i.readXattrRefs(order.Uint64(b[56:])); err != nil {
		return nil, fmt.Errorf("read attributes: %w", err)
	}
	return i, nil
}

// readAt reads within the image.
func (i *Image) readAt(into []byte, at int64) error {
	if at < 0 || at > i.size || int64(len(into)) > i.size-at {
		return fmt.Errorf("read %d bytes at %d: the image ends before: %w", len(into), at, ErrCorrupt)
	}
	if n, err := i.from.ReadAt(into, at); n < len(into) {
		return unexpected(err)
	}
	return nil
}

// unexpected is the error of a read that ends too early.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// table reads entries of a size each, which lie in metadata blocks whose places
// are in a list.
func (i *Image) table(list uint64, count, entry int) ([]byte, error) {
	if list > uint64(i.size) || int64(count)*int64(entry) > i.size*metaSize {
		return nil, fmt.Errorf("a table of %d entries at %d: %w", count, list, ErrCorrupt)
	}
	blocks := (count*entry + metaSize - 1) / metaSize
	places := make([]byte, 8*blocks)
	if err := i.readAt(places, int64(list)); err != nil {
		return nil, err
	}
	var all []byte
	for k := range blocks {
		block, err := i.meta(int64(order.Uint64(places[8*k:])))
		if err != nil {
			return nil, err
		}
		all = append(all, block.data...)
	}
	if len(all) < count*entry {
		return nil, fmt.Errorf("a table with %d bytes of %d: %w", len(all), count*entry, ErrCorrupt)
	}
	return all[:count*entry], nil
}

func (i *Image) readIDs(list uint64, count int) error {
	all, err := i.table(list, count, 4)
	for k := 0; k+4 <= len(all); k += 4 {
		i.ids = append(i.ids, order.Uint32(all[k:]))
	}
	return err
}

func (i *Image) readFragments(list uint64, count uint32) error {
	if count == 0 || list == noTable {
		return nil
	}
	all, err := i.table(list, int(count), 16)
	for k := 0; k+16 <= len(all); k += 16 {
		i.fragments = append(i.fragments, fragment{int64(order.Uint64(all[k:])), order.Uint32(all[k+8:])})
	}
	return err
}

// id is the user or group of a number in the table.
func (i *Image) id(index uint16) (uint32, error) {
	if int(index) >= len(i.ids) {
		return 0, fmt.Errorf("user %d of %d: %w", index, len(i.ids), ErrCorrupt)
	}
	return i.ids[index], nil
}
