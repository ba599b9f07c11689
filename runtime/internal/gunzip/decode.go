package gunzip

import (
	"encoding/binary"
	"fmt"
	"io"
)

// literalsPerRefill literals take 44 bits where they are found at once, a match 48 at
// most. A refill leaves 56 or more.
const literalsPerRefill = 4

// decode unpacks a block up to its end, or until full bytes are there.
//
// In bits there may be more than count says: those of the next byte, which a refill
// puts there once more.
func (r *Reader) decode(full int) error {
	in, out, literals, distances := &r.in, &r.out, &r.literals, &r.distances
	pos, p, bits, count := r.pos, r.done, r.bits, r.count
	// safe is up to where a turn finds all that it reads.
	safe := r.end - inSlack
	for p < full {
		if pos > safe {
			if !r.ended {
				r.leave(pos, p, bits, count)
				if err := r.fill(); err != nil {
					return err
				}
				pos, bits, count, safe = r.pos, r.bits, r.count, r.end-inSlack
				continue
			}
			if pos-int(count/8) > r.end {
				return io.ErrUnexpectedEOF
			}
		}
		bits |= binary.LittleEndian.Uint64(in[pos:]) << (count & 63)
		pos += int((63 - count) / 8)
		count |= 56
		entry := literals[bits&(1<<literalBits-1)]
		if entry&isLiteral != 0 {
			for range literalsPerRefill {
				bits >>= entry & takesMask
				count -= uint(entry & takesMask)
				out[p] = byte(entry >> valueShift)
				p++
				entry = literals[bits&(1<<literalBits-1)]
				if entry&isLiteral == 0 {
					break
				}
			}
			if entry&isLiteral != 0 {
				continue
			}
			bits |= binary.LittleEndian.Uint64(in[pos:]) << (count & 63)
			pos += int((63 - count) / 8)
			count |= 56
		}
		if entry&special != 0 {
			if entry&isPart != 0 {
				bits >>= literalBits
				count -= literalBits
				entry = literals[uint(entry>>valueShift&0x7fff)+uint(bits&(1<<(entry>>codeShift&codeMask)-1))]
				if entry&isLiteral != 0 {
					bits >>= entry & takesMask
					count -= uint(entry & takesMask)
					out[p] = byte(entry >> valueShift)
					p++
					continue
				}
			}
			switch {
			case entry&special == 0:
			case entry&isEnd != 0:
				bits >>= entry & takesMask
				count -= uint(entry & takesMask)
				r.state = block
				full = p
				continue
			default:
				return wrong(pos, count, r.end, "a code that there is not")
			}
		}
		saved := bits
		bits >>= entry & takesMask
		count -= uint(entry & takesMask)
		length := int(entry>>valueShift) + int(saved&(1<<(entry&takesMask)-1)>>(entry>>codeShift&codeMask))

		entry = distances[bits&(1<<distanceBits-1)]
		if entry&special != 0 {
			if entry&isPart != 0 {
				bits >>= distanceBits
				count -= distanceBits
				entry = distances[uint(entry>>valueShift&0x7fff)+uint(bits&(1<<(entry>>codeShift&codeMask)-1))]
			}
			if entry&special != 0 {
				return wrong(pos, count, r.end, "a code that there is not")
			}
		}
		saved = bits
		bits >>= entry & takesMask
		count -= uint(entry & takesMask)
		distance := int(entry>>valueShift) + int(saved&(1<<(entry&takesMask)-1)>>(entry>>codeShift&codeMask))

		from := p - distance
		if from < r.begin {
			return wrong(pos, count, r.end, "it leads to before its beginning")
		}
		switch end := p + length; {
		case distance >= 8:
			// Words, of which the last one may go beyond the end.
			for p < end {
				binary.LittleEndian.PutUint64(out[p:], binary.LittleEndian.Uint64(out[from:]))
				p += 8
				from += 8
			}
			p = end
		case distance == 1:
			word := uint64(out[from]) * 0x0101010101010101
			for ; p < end; p += 8 {
				binary.LittleEndian.PutUint64(out[p:], word)
			}
			p = end
		default:
			for p < end {
				out[p] = out[from]
				p++
				from++
			}
		}
	}
	r.leave(pos, p, bits, count)
	if r.pos > r.end {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// leave puts whole bytes that were read ahead back: fewer than eight bits stay.
func (r *Reader) leave(pos, p int, bits uint64, count uint) {
	pos -= int(count / 8)
	count %= 8
	r.pos, r.done, r.bits, r.count = pos, p, bits&(1<<count-1), count
}

// wrong says what is wrong, unless it is only that all ends before: there are zeros.
func wrong(pos int, count uint, end int, what string) error {
	if pos-int(count/8) > end {
		return io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %s", ErrCorrupt, what)
}
