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

// unpackXZ unpacks a stream with a single block, as mksquashfs writes it. A library
// would accept any number of blocks, and allocate as much memory as each header
// demands. So this function parses the stream, and leaves only the block's LZMA2
// data to a library.
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
	// The kernel reads no other checksums: lib/xz/xz_dec_stream.c.
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
	if len(packed) <= at || packed[at] != 0 { // 0 marks the index, which follows the last block
		return nil, corrupt("of more than one block")
	}
	return out, nil
}

// checkXZ parses the header of the first block. It returns the size of the header,
// and of the dictionary, in bytes. It refuses a dictionary larger than a block.
func checkXZ(packed []byte) (size, dictionary int, err error) {
	const lzma2 = 0x21
	corrupt := fmt.Errorf("xz header: %w", ErrCorrupt)
	if len(packed) < xzStreamHeader+2 || !bytes.HasPrefix(packed, []byte(xzMagic)) || packed[xzStreamHeader] == 0 {
		return 0, 0, corrupt
	}
	size = (int(packed[xzStreamHeader]) + 1) * xzAlignment
	flags, rest := packed[xzStreamHeader+1], packed[xzStreamHeader+2:]
	for _, field := range []byte{0x40, 0x80} { // sizes of the block, packed and unpacked
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
	// The size of the dictionary is 2 or 3 times a power of two.
	bits := rest[2]
	if bits > 40 || (2|int64(bits&1))<<(bits/2+11) > maxBlock {
		return 0, 0, fmt.Errorf("xz with a dictionary that is larger than a block: %w", ErrCorrupt)
	}
	return size, int(2|bits&1) << (bits/2 + 11), nil
}
