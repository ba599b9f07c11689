package squashfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/ulikunitz/xz/lzma"
)

// The format's parts: https://tukaani.org/xz/xz-file-format.txt, 2.1.1 and 3.1.
const (
	xzMagic        = "\xfd7zXZ\x00"
	xzStreamHeader = 12
	xzAlignment    = 4
)

// unpackXZ unpacks a stream of one block, as mksquashfs makes them. Libraries read any
// number of blocks, and take as much memory for each as its header says, so that
// only what is in the block is left to one.
func unpackXZ(into, packed []byte, maximum int) ([]byte, error) {
	size, dictionary, err := checkXZ(packed)
	if err != nil {
		return nil, err
	}
	corrupt := func(what string) error { return fmt.Errorf("xz %s: %w", what, ErrCorrupt) }
	at := xzStreamHeader + size
	if at > len(packed) {
		return nil, corrupt("header")
	}
	rest := bytes.NewReader(packed[at:])
	r, err := lzma.Reader2Config{DictCap: max(dictionary, lzma.MinDictCap)}.NewReader2(rest)
	if err != nil {
		return nil, err
	}
	out, err := fill(into, r, maximum)
	if err != nil {
		return nil, err
	}
	if !r.EOS() {
		return nil, corrupt("that ends too early")
	}
	at = len(packed) - rest.Len()
	at += -at & (xzAlignment - 1)
	// The kernel reads no others: lib/xz/xz_dec_stream.c.
	switch packed[7] {
	case 0:
	case 1:
		if len(packed) < at+4 || order.Uint32(packed[at:]) != crc32.ChecksumIEEE(out) {
			return nil, corrupt("checksum")
		}
		at += 4
	default:
		return nil, errors.New("xz with a checksum other than CRC32, which is not understood")
	}
	if len(packed) <= at || packed[at] != 0 { // 0 begins the index, and no block
		return nil, corrupt("of more than one block")
	}
	return out, nil
}

// checkXZ looks at the header of the first block, and returns how large that is and
// its dictionary, in bytes. It refuses one that would have its reader take more memory
// than a block can need.
func checkXZ(packed []byte) (size, dictionary int, err error) {
	const lzma2 = 0x21
	corrupt := fmt.Errorf("xz header: %w", ErrCorrupt)
	if len(packed) < xzStreamHeader+2 || !bytes.HasPrefix(packed, []byte(xzMagic)) || packed[xzStreamHeader] == 0 {
		return 0, 0, corrupt
	}
	size = (int(packed[xzStreamHeader]) + 1) * xzAlignment
	flags, rest := packed[xzStreamHeader+1], packed[xzStreamHeader+2:]
	for _, field := range []byte{0x40, 0x80} { // of the block, packed and unpacked
		if flags&field != 0 {
			_, n := binary.Uvarint(rest)
			if n <= 0 {
				return 0, 0, corrupt
			}
			rest = rest[n:]
		}
	}
	if flags&0x3f != 0 || len(rest) < 3 || rest[0] != lzma2 || rest[1] != 1 {
		return 0, 0, errors.New("an xz block with filters, which are not understood")
	}
	// Two bits, and the power of two that they are multiplied by.
	bits := rest[2]
	if bits > 40 || (2|int64(bits&1))<<(bits/2+11) > maxBlock {
		return 0, 0, fmt.Errorf("xz with a dictionary that is larger than a block: %w", ErrCorrupt)
	}
	return size, int(2|bits&1) << (bits/2 + 11), nil
}
