package squashfs

import "fmt"

// Extent is a block of data in an image: its offset and its packed size in bytes. Plain is
// set if the block is not compressed.
type Extent struct {
	Offset int64
	Size   uint32
	Plain  bool
}

// Part is the place of a part of a file's content, at offset Inner of an unpacked
// block.
type Part struct {
	At    int64 // offset in the file
	Size  uint32
	Inner uint32
	Block Extent
}

// Parts returns the places of a file's content, in order. Gaps are zeros. It reads
// no content.
func (i *Image) Parts(n Inode) (parts []Part, err error) {
	at, done := n.start, int64(0)
	for _, size := range n.blocks {
		p := Part{At: done, Size: uint32(min(n.Size-done, int64(i.blockSize))), Block: Extent{at, size &^ plainData, size&plainData != 0}}
		done += int64(p.Size)
		if size == 0 {
			continue
		}
		if err := i.check(p); err != nil {
			return nil, err
		}
		at += int64(p.Block.Size)
		parts = append(parts, p)
	}
	if done == n.Size {
		return parts, nil
	}
	f, err := i.fragment(n.fragment)
	if err != nil {
		return nil, err
	}
	p := Part{At: done, Size: uint32(n.Size - done), Inner: n.offset, Block: Extent{f.start, f.size &^ plainData, f.size&plainData != 0}}
	return append(parts, p), i.check(p)
}

// check returns an error for a part that no valid image has.
func (i *Image) check(p Part) error {
	b := p.Block
	end := int64(p.Inner) + int64(p.Size)
	switch {
	case b.Size == 0 || b.Size > i.blockSize || b.Offset < 0 || b.Offset > i.size-int64(b.Size):
		return fmt.Errorf("a block of %d bytes at %d: %w", b.Size, b.Offset, ErrCorrupt)
	case end > int64(i.blockSize) || b.Plain && end > int64(b.Size):
		return fmt.Errorf("bytes %d to %d of a block of %d: %w", p.Inner, end, b.Size, ErrCorrupt)
	}
	return nil
}

// Packing describes how an image's data blocks are packed.
type Packing struct {
	// Compression is the codec's number in the format.
	Compression uint16
	// BlockSize bounds the size of a block, packed or not, in bytes.
	BlockSize uint32
}

// Packing returns this image's packing.
func (i *Image) Packing() Packing { return Packing{i.compression, i.blockSize} }

// Unpacker unpacks blocks, one at a time.
type Unpacker struct {
	codec   codec
	maximum int
}

// NewUnpacker returns an unpacker for a packing. It fails for an unsupported compression and
// an invalid block size.
func NewUnpacker(p Packing) (*Unpacker, error) {
	if p.BlockSize < minBlock || p.BlockSize > maxBlock {
		return nil, fmt.Errorf("blocks of %d bytes: %w", p.BlockSize, ErrCorrupt)
	}
	codec, err := newCodec(p.Compression)
	return &Unpacker{codec, int(p.BlockSize)}, err
}

// Unpack unpacks a compressed block.
func (u *Unpacker) Unpack(packed []byte) ([]byte, error) { return u.codec(nil, packed, u.maximum) }
