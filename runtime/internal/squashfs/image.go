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
	// maxFileBlocks bounds the blocks of a file: a terabyte at the usual block
	// size. maxBlocks bounds the blocks of all files. Sparse blocks count, too.
	maxFileBlocks = 8 << 20
	maxBlocks     = 64 << 20
)

var order = binary.LittleEndian

// Image is an image open for reading. It is not safe for concurrent use.
type Image struct {
	most      budget.Budget
	from      io.ReaderAt
	size      int64
	blockSize uint32
	inodes    uint32
	codec     codec
	// compression is the codec's number in the format.
	compression uint16

	root                           uint64
	inodeTable, dirTable           int64
	ids                            []uint32
	fragments, xattrRefs           table
	xattrTable                     int64
	kept                           map[int64]metaBlock
	fragmentAt                     int64 // offset of the fragment block in fragmentData
	blocks                         int64 // number of blocks of all files read so far
	fragmentData, packed, unpacked []byte
	metadata                       []byte // the metadata block unpacked last
}

type fragment struct {
	start int64
	size  uint32
}

// Open returns the image in the first size bytes of from, within the limits of most.
func Open(from io.ReaderAt, size int64, most budget.Budget) (*Image, error) {
	var b [superSize]byte
	if _, err := from.ReadAt(b[:], 0); err != nil {
		return nil, fmt.Errorf("read superblock: %w", unexpected(err))
	}
	i := &Image{
		most: most, from: from, size: size, inodes: order.Uint32(b[4:]), blockSize: order.Uint32(b[12:]),
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
		return nil, fmt.Errorf("read superblock: %d bytes, but the file has %d: %w", used, size, ErrCorrupt)
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

// unexpected replaces io.EOF by io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readIDs reads the table of user and group IDs, which has at most 65,535 entries.
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

// id returns the user or group ID at an index of the table.
func (i *Image) id(index uint16) (uint32, error) {
	if int(index) >= len(i.ids) {
		return 0, fmt.Errorf("user %d of %d: %w", index, len(i.ids), ErrCorrupt)
	}
	return i.ids[index], nil
}
