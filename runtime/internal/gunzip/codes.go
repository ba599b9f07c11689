package gunzip

import (
	"errors"
	"fmt"
	"math/bits"
)

// A code is looked up by its first bits in a table. What is longer than those leads
// on to a part of its own behind them. An entry is, from its lowest bit: 6 bits for
// how many bits all of the symbol takes, 2 that are not used, 4 for how many of them
// are the code; then the marks, and from bit 16 on the literal, the least length or
// distance, or where the part begins. Of a part's entries the first bits, by which
// it was found, are not counted.
const (
	literalBits  = 11
	distanceBits = 9
	// What the parts take at most. Codes of a part differ only in what is
	// behind the first bits, at most 4 and 6 of 15, and each part has at
	// least two of them.
	literalMore  = (maxLiterals + 1) / 2 << (maxBits - literalBits)
	distanceMore = (maxDistances + 1) / 2 << (maxBits - distanceBits)

	maxBits      = 15
	maxLiterals  = 288 // the last two are never used, but have codes in fixed blocks
	maxDistances = 32  // and so these

	takesMask = 63
	codeShift = 8
	codeMask  = 15

	valueShift = 16
	isLiteral  = 1 << 31
	// special entries are one of the three behind it.
	special  = 1 << 15
	isPart   = 1 << 14
	isEnd    = 1 << 13
	isWrong  = 1 << 12
	endBlock = 256
)

// symbol is what an entry says besides how long its code is: the number of extra
// bits, and all from the marks on.
type symbol struct {
	extra uint8
	entry uint32
}

// What the symbols mean (RFC 1951, 3.2.5).
var (
	literalSymbols  = literalMeanings()
	distanceSymbols = distanceMeanings()
	// lengthSymbols are those of the codes of codes.
	lengthSymbols = lengthMeanings()
	lengthOrder   = [19]uint8{16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15}
)

func lengthMeanings() (all [19]symbol) {
	for i := range all {
		all[i].entry = uint32(i) << valueShift
	}
	return all
}

func literalMeanings() (all [maxLiterals]symbol) {
	for i := range endBlock {
		all[i].entry = isLiteral | uint32(i)<<valueShift
	}
	all[endBlock].entry = special | isEnd
	length := uint32(3)
	for i := endBlock + 1; i < 285; i++ {
		extra := max(0, (i-265+4)/4)
		all[i] = symbol{uint8(extra), length << valueShift}
		length += 1 << extra
	}
	all[285].entry = maxLength << valueShift
	for i := 286; i < maxLiterals; i++ {
		all[i].entry = special | isWrong
	}
	return all
}

func distanceMeanings() (all [maxDistances]symbol) {
	distance := uint32(1)
	for i := range 30 {
		extra := max(0, i/2-1)
		all[i] = symbol{uint8(extra), distance << valueShift}
		distance += 1 << extra
	}
	for i := 30; i < maxDistances; i++ {
		all[i].entry = special | isWrong
	}
	return all
}

// build makes a table, of which the first 1<<first entries are for the first bits,
// of the lengths of the codes; none has length 0. Codes have to be complete, but for
// one alone that has one bit: then the other one is wrong.
func build(table []uint32, first uint, lengths []uint8, meaning []symbol) error {
	var counts [maxBits + 1]int
	for _, n := range lengths {
		counts[n]++
	}
	longest := uint(maxBits)
	for longest > 0 && counts[longest] == 0 {
		longest--
	}
	code, used := uint32(0), 0
	var next [maxBits + 2]uint32
	for n := uint(1); n <= longest; n++ {
		next[n] = code
		used += counts[n]
		code = (code + uint32(counts[n])) << 1
	}
	code >>= 1 // one past the last code of the longest
	alone := longest == 1 && used == 1
	if longest > 0 && code != 1<<longest && !alone {
		return fmt.Errorf("%w: its codes are impossible", ErrCorrupt)
	}
	roots := table[:1<<first]
	clear(roots)
	if longest == 0 || alone {
		for i := range roots {
			roots[i] = special | isWrong
		}
	}
	free := len(roots)
	for value, n := range lengths {
		if n == 0 {
			continue
		}
		size := uint(n)
		reversed := uint(bits.Reverse16(uint16(next[size])) >> (16 - size))
		next[size]++
		entries := roots
		if size > first {
			root := &roots[reversed%uint(len(roots))]
			if *root == 0 {
				*root = special | isPart | uint32(free)<<valueShift | uint32(longest-first)<<codeShift | uint32(first)
				free += 1 << (longest - first)
			}
			start := *root >> valueShift
			entries = table[start : start+1<<(longest-first)]
			reversed >>= first
			size -= first
		}
		entry := meaning[value].entry | uint32(size)
		if entry&special == 0 {
			entry += uint32(meaning[value].extra) | uint32(size)<<codeShift
		}
		for i := reversed; i < uint(len(entries)); i += 1 << size {
			entries[i] = entry
		}
	}
	return nil
}

// fixedCodes are those of blocks that bring none.
func (r *Reader) fixedCodes() error {
	for i := range maxLiterals {
		switch {
		case i < 144:
			r.lengths[i] = 8
		case i < 256:
			r.lengths[i] = 9
		case i < 280:
			r.lengths[i] = 7
		default:
			r.lengths[i] = 8
		}
	}
	distances := r.lengths[maxLiterals:]
	for i := range distances {
		distances[i] = 5
	}
	return errors.Join(
		build(r.literals[:], literalBits, r.lengths[:maxLiterals], literalSymbols[:]),
		build(r.distances[:], distanceBits, distances, distanceSymbols[:]))
}

// readCodes reads the codes of a block, which are packed themselves.
func (r *Reader) readCodes() error {
	sizes, err := r.take(14)
	if err != nil {
		return err
	}
	literals, distances, count := int(sizes&31)+257, int(sizes>>5&31)+1, int(sizes>>10)+4
	if literals > maxLiterals-2 || distances > maxDistances-2 {
		return fmt.Errorf("%w: too many codes", ErrCorrupt)
	}
	var lengths [19]uint8
	for _, i := range lengthOrder[:count] {
		n, err := r.take(3)
		if err != nil {
			return err
		}
		lengths[i] = uint8(n)
	}
	const first = 7 // the longest there can be
	var table [1 << first]uint32
	if err := build(table[:], first, lengths[:], lengthSymbols[:]); err != nil {
		return err
	}
	all := r.lengths[:literals+distances]
	for i := 0; i < len(all); {
		entry, err := r.symbol(&table)
		if err != nil {
			return err
		}
		value := uint8(entry >> valueShift)
		if value < 16 {
			all[i] = value
			i++
			continue
		}
		again, of := 0, uint8(0)
		switch value {
		case 16:
			if i == 0 {
				return fmt.Errorf("%w: a length of no code is given again", ErrCorrupt)
			}
			n, err := r.take(2)
			if err != nil {
				return err
			}
			again, of = int(n)+3, all[i-1]
		case 17:
			n, err := r.take(3)
			if err != nil {
				return err
			}
			again = int(n) + 3
		default:
			n, err := r.take(7)
			if err != nil {
				return err
			}
			again = int(n) + 11
		}
		if again > len(all)-i {
			return fmt.Errorf("%w: more codes than it says", ErrCorrupt)
		}
		for range again {
			all[i] = of
			i++
		}
	}
	if err := build(r.literals[:], literalBits, all[:literals], literalSymbols[:]); err != nil {
		return err
	}
	return build(r.distances[:], distanceBits, all[literals:], distanceSymbols[:])
}

// symbol returns the next one of a small table. There may be fewer bits left than
// the table is looked up by.
func (r *Reader) symbol(table *[1 << 7]uint32) (uint32, error) {
	for {
		entry := table[r.bits&(1<<7-1)]
		size := uint(entry & takesMask)
		if size <= r.count && entry&special == 0 {
			r.bits >>= size
			r.count -= size
			return entry, nil
		}
		if entry&special != 0 && r.count > 0 {
			return 0, fmt.Errorf("%w: a code that there is not", ErrCorrupt)
		}
		if err := r.need(r.count + 1); err != nil {
			return 0, err
		}
	}
}
