package squashfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"berth.dev/berth/runtime/internal/budget"
)

// ErrCorrupt wraps every error caused by a malformed image.
var ErrCorrupt = errors.New("squashfs image is corrupt")

const (
	magic      = 0x73717368
	superSize  = 96
	noFragment = math.MaxUint32
	noXattrs   = math.MaxUint32
	noTable    = math.MaxUint64
	// minBlock and maxBlock are the format's limits for the block size.
	minBlock = 4 << 10
	maxBlock = 1 << 20
	// maxFileBlocks bounds the blocks of a file: a terabyte with the usual blocks of
	// 128 KiB. maxBlocks bounds the blocks of all files. Sparse blocks count, too.
	maxFileBlocks = 8 << 20
	maxBlocks     = 64 << 20
)

var order = binary.LittleEndian

// Image is an image that is open for reading. It is not safe for concurrent use.
type Image struct {
	limits    budget.Budget
	from      io.ReaderAt
	size      int64 // in bytes, as the superblock states it
	blockSize uint32
	inodes    uint32 // number of inodes
	codec     codec
	// compression is the codec's number in the format.
	compression uint16

	root                           uint64   // reference to the inode of the root directory
	inodeTable, dirTable           int64    // offsets
	ids                            []uint32 // user and group IDs
	fragments, xattrRefs           table
	xattrTable                     int64
	kept                           map[int64]metaBlock
	fragmentAt                     int64 // offset of the fragment block in fragmentData
	blocks                         int64 // number of blocks of all files read so far
	fragmentData, packed, unpacked []byte
	metadata                       []byte // the metadata block unpacked last
}

// fragment is the offset and the packed size of a fragment block.
type fragment struct {
	start int64
	size  uint32
}

// Open returns the image in the first size bytes of from. It reads the superblock and the
// tables; the limits apply to the files that are read later. The error wraps ErrCorrupt if
// the image is malformed.
func Open(from io.ReaderAt, size int64, limits budget.Budget) (*Image, error) {
	var b [superSize]byte
	if _, err := from.ReadAt(b[:], 0); err != nil {
		return nil, fmt.Errorf("read superblock: %w", unexpected(err))
	}
	i := &Image{
		limits: limits, from: from, size: size, inodes: order.Uint32(b[4:]), blockSize: order.Uint32(b[12:]),
		compression: order.Uint16(b[20:]), root: order.Uint64(b[32:]), kept: map[int64]metaBlock{}, fragmentAt: -1,
	}
	used := order.Uint64(b[40:])
	switch {
	case order.Uint32(b[0:]) != magic:
		return nil, fmt.Errorf("read superblock: not a squashfs image: %w", ErrCorrupt)
	case order.Uint16(b[28:]) != 4 || order.Uint16(b[30:]) != 0:
		return nil, fmt.Errorf("squashfs version %d.%d is not supported, only 4.0", order.Uint16(b[28:]), order.Uint16(b[30:]))
	case i.blockSize < minBlock || i.blockSize > maxBlock || i.blockSize&(i.blockSize-1) != 0:
		return nil, fmt.Errorf("read superblock: blocks of %d bytes: %w", i.blockSize, ErrCorrupt)
	case used > uint64(size):
		return nil, fmt.Errorf("read superblock: the image has %d bytes, but the file only %d: %w", used, size, ErrCorrupt)
	}
	i.size = int64(used)
	var err error
	if i.codec, err = newCodec(i.compression); err != nil {
		return nil, err
	}
	i.inodeTable, i.dirTable = int64(order.Uint64(b[64:])), int64(order.Uint64(b[72:]))
	if err := i.readIDs(order.Uint64(b[48:]), order.Uint16(b[26:])); err != nil {
		return nil, fmt.Errorf("read users: %w", err)
	}
	if list, count := order.Uint64(b[80:]), order.Uint32(b[16:]); count > 0 && list != noTable {
		if i.fragments, err = i.newTable(list, count, 16); err != nil {
			return nil, fmt.Errorf("read fragments: %w", err)
		}
	}
	if err := i.readXattrRefs(order.Uint64(b[56:])); err != nil {
		return nil, fmt.Errorf("read attributes: %w", err)
	}
	return i, nil
}

// readAt fills into with the bytes at an offset. The error wraps ErrCorrupt if they are
// not within the image.
func (i *Image) readAt(into []byte, at int64) error {
	if at < 0 || at > i.size || int64(len(into)) > i.size-at {
		return fmt.Errorf("read %d bytes at %d: beyond the end of the image: %w", len(into), at, ErrCorrupt)
	}
	if n, err := i.from.ReadAt(into, at); n < len(into) {
		return unexpected(err)
	}
	return nil
}

// unexpected returns io.ErrUnexpectedEOF instead of io.EOF, and other errors as they are.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readIDs reads the table of user and group IDs.
func (i *Image) readIDs(list uint64, count uint16) error {
	t, err := i.newTable(list, uint32(count), 4)
	if err != nil {
		return err
	}
	for k := range t.count {
		b, err := i.at(t, k)
		if err != nil {
			return err
		}
		i.ids = append(i.ids, order.Uint32(b))
	}
	return nil
}

// fragment returns the place of a fragment block.
func (i *Image) fragment(index uint32) (fragment, error) {
	b, err := i.at(i.fragments, index)
	if err != nil {
		return fragment{}, fmt.Errorf("fragment: %w", err)
	}
	return fragment{int64(order.Uint64(b)), order.Uint32(b[8:])}, nil
}

// id returns the user or group ID at an index of the table of IDs.
func (i *Image) id(index uint16) (uint32, error) {
	if int(index) >= len(i.ids) {
		return 0, fmt.Errorf("user or group %d of %d: %w", index, len(i.ids), ErrCorrupt)
	}
	return i.ids[index], nil
}
