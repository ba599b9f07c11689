package squashfs

import "fmt"

// unpackLZ4 unpacks one block of LZ4, which has no frame around it:
// https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md. Libraries for it are
// larger than it is.
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
			break // the last sequence has literals only
		}
		if len(packed) < 2 {
			return corrupt()
		}
		back := int(order.Uint16(packed))
		match, rest, ok := lz4Length(int(token&15), packed[2:])
		match += 4 // shorter ones are not worth it
		if !ok || back == 0 || back > len(out) || match > maximum-len(out) {
			return corrupt()
		}
		packed = rest
		for match > 0 { // what is copied may be what is just being written
			n := min(match, back)
			out = append(out, out[len(out)-back:][:n]...)
			match -= n
		}
	}
	return out, nil
}

// lz4Length is a length that begins in four bits, and goes on for as long as bytes
// are full.
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
