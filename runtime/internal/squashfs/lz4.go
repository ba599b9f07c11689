package squashfs

import "fmt"

// unpackLZ4 unpacks one LZ4 block without a frame:
// https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md. Libraries for it are
// larger than this function.
func unpackLZ4(into, packed []byte, maximum int) ([]byte, error) {
	if cap(into) < maximum {
		into = make([]byte, 0, maximum)
	}
	out := into[:0]
	corrupt := func() ([]byte, error) { return nil, fmt.Errorf("lz4 at byte %d: %w", len(out), ErrCorrupt) }
	for len(packed) > 0 {
		token := packed[0]
		literals, rest, ok := lz4Length(int(token>>4), packed[1:])
		if !ok || literals > len(rest) || literals > maximum-len(out) {
			return corrupt()
		}
		out, packed = append(out, rest[:literals]...), rest[literals:]
		if len(packed) == 0 {
			break // the last sequence has only literals
		}
		if len(packed) < 2 {
			return corrupt()
		}
		back := int(order.Uint16(packed))
		match, rest, ok := lz4Length(int(token&15), packed[2:])
		match += 4 // the shortest match has 4 bytes
		if !ok || back == 0 || back > len(out) || match > maximum-len(out) {
			return corrupt()
		}
		packed = rest
		for match > 0 { // the match may overlap the bytes being written
			n := min(match, back)
			out = append(out, out[len(out)-back:][:n]...)
			match -= n
		}
	}
	return out, nil
}

// lz4Length decodes a length: four bits, continued by further bytes while each is
// 255.
func lz4Length(length int, packed []byte) (int, []byte, bool) {
	if length < 15 {
		return length, packed, true
	}
	for len(packed) > 0 {
		more := packed[0]
		length, packed = length+int(more), packed[1:]
		if length > maxBlock {
			return 0, nil, false
		}
		if more < 255 {
			return length, packed, true
		}
	}
	return 0, nil, false
}
