// Package gunzip reads what gzip has packed (RFC 1951 and 1952). Layers of images
// mostly are, and to unpack them is most of what it costs to make a file of a layer:
// this reader takes half of the time of compress/gzip, because it reads and writes words in
// place of bytes, and leaves the checks of what is left for once in four symbols.
// It reads ahead, and gives large pieces: it is for files and archives, not for
// conversations.
//
// What packs, what other compressions there are, and what is in an archive is none of
// its business.
package gunzip

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// ErrCorrupt is of what is not gzip, or was changed.
var ErrCorrupt = errors.New("gzip: what is packed is damaged")

const (
	windowSize = 32 << 10
	// roomSize is how much is unpacked at a time: with the window, what a core's
	// second cache holds.
	roomSize = 96 << 10
	// outSlack is room for one turn of the loop, and the word that goes beyond.
	outSlack = literalsPerRefill + maxLength + 8
	inSize   = 128 << 10
	// inSlack are the zeros behind the end of all, which one turn may read.
	inSlack   = 32
	maxLength = 258
)

type state int

const (
	header state = iota
	block
	stored
	packed
	trailer
)

// Reader reads all members of a file, one after the other, as gzip -d does.
type Reader struct {
	from io.Reader
	err  error // what Read says when all was given

	in       [inSize + inSlack]byte
	pos, end int
	// ended is that from has ended; failed what it said then.
	ended  bool
	failed error
	// bits are the next count of them, fewer than eight between blocks and takes.
	bits  uint64
	count uint

	out [windowSize + roomSize + outSlack]byte
	// given and done are how much of out was read, and how much there is; begin is
	// where the member begins, as far as that is still in out, and summed how much
	// of out is in sum and size.
	given, done, begin, summed int
	sum, size                  uint32

	state state
	// last is that no block comes after this one.
	last bool
	// rest is what is left of a stored block.
	rest    int
	members int

	literals  [1<<literalBits + literalMore]uint32
	distances [1<<distanceBits + distanceMore]uint32
	lengths   [maxLiterals + maxDistances]uint8
}

// NewReader returns a reader of what from has.
func NewReader(from io.Reader) *Reader { return &Reader{from: from} }

// Read unpacks.
func (r *Reader) Read(p []byte) (int, error) {
	for r.given == r.done {
		if r.err != nil {
			return 0, r.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		r.err = r.unpack()
	}
	n := copy(p, r.out[r.given:r.done])
	r.given += n
	return n, nil
}

// unpack makes more of the content, or says why there is none.
func (r *Reader) unpack() error {
	const full = windowSize + roomSize
	if r.done > full-roomSize/2 {
		gone := r.done - windowSize
		copy(r.out[:windowSize], r.out[gone:r.done])
		r.given, r.done, r.summed, r.begin = r.given-gone, windowSize, r.summed-gone, max(0, r.begin-gone)
	}
	for r.done < full {
		var err error
		switch r.state {
		case header:
			err = r.readHeader()
		case block:
			err = r.beginBlock()
		case stored:
			err = r.copyStored(full)
		case packed:
			err = r.decode(full)
		case trailer:
			err = r.readTrailer()
		}
		if err != nil {
			return err
		}
	}
	r.note()
	return nil
}

// note takes in what was unpacked.
func (r *Reader) note() {
	r.sum = crc32.Update(r.sum, crc32.IEEETable, r.out[r.summed:r.done])
	r.size += uint32(r.done - r.summed)
	r.summed = r.done
}

// fill reads more, once. At the end of all there are zeros behind it.
func (r *Reader) fill() error {
	if r.failed != nil {
		return r.failed
	}
	copy(r.in[:], r.in[r.pos:r.end])
	r.pos, r.end = 0, r.end-r.pos
	for range 100 {
		n, err := r.from.Read(r.in[r.end:inSize])
		r.end += n
		switch {
		case errors.Is(err, io.EOF):
			r.ended = true
			clear(r.in[r.end : r.end+inSlack])
			return nil
		case err != nil:
			r.failed = err
			if n == 0 {
				return err
			}
			return nil
		case n > 0:
			return nil
		}
	}
	return io.ErrNoProgress
}

// need has at least n bits in bits; n is at most 32.
func (r *Reader) need(n uint) error {
	for r.count < n {
		if r.pos == r.end {
			if r.ended {
				return io.ErrUnexpectedEOF
			}
			if err := r.fill(); err != nil {
				return err
			}
			continue
		}
		r.bits |= uint64(r.in[r.pos]) << r.count
		r.pos++
		r.count += 8
	}
	return nil
}

// take returns the next n bits.
func (r *Reader) take(n uint) (uint32, error) {
	if err := r.need(n); err != nil {
		return 0, err
	}
	value := uint32(r.bits & (1<<n - 1))
	r.bits >>= n
	r.count -= n
	return value, nil
}

// The header's flags.
const (
	hasSum = 1 << (iota + 1)
	hasExtra
	hasName
	hasComment
)

func (r *Reader) readHeader() error {
	if r.count == 0 && r.pos == r.end && !r.ended {
		if err := r.fill(); err != nil {
			return err
		}
	}
	if r.members > 0 && r.count == 0 && r.pos == r.end && r.ended {
		return io.EOF
	}
	sum := uint32(0)
	var fixed [10]byte
	next := func() (byte, error) {
		b, err := r.take(8)
		sum = crc32.Update(sum, crc32.IEEETable, []byte{byte(b)})
		return byte(b), err
	}
	for i := range fixed {
		var err error
		if fixed[i], err = next(); err != nil {
			return err
		}
	}
	if fixed[0] != 0x1f || fixed[1] != 0x8b || fixed[2] != 8 {
		return fmt.Errorf("%w: it does not begin as gzip does", ErrCorrupt)
	}
	flags := fixed[3]
	if flags&hasExtra != 0 {
		low, err1 := next()
		high, err2 := next()
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		for range int(low) | int(high)<<8 {
			if _, err := next(); err != nil {
				return err
			}
		}
	}
	for _, text := range []byte{hasName, hasComment} {
		for flags&text != 0 {
			b, err := next()
			if err != nil {
				return err
			}
			if b == 0 {
				break
			}
		}
	}
	if flags&hasSum != 0 {
		want := uint16(sum)
		if got, err := r.take(16); err != nil || uint16(got) != want {
			return errors.Join(err, fmt.Errorf("%w: the checksum of its header is wrong", ErrCorrupt))
		}
	}
	r.members++
	r.state, r.begin, r.summed, r.sum, r.size = block, r.done, r.done, 0, 0
	return nil
}

// readTrailer ends a member.
func (r *Reader) readTrailer() error {
	r.note()
	if _, err := r.take(r.count % 8); err != nil {
		return err
	}
	sum, err1 := r.take(32)
	size, err2 := r.take(32)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if sum != r.sum || size != r.size {
		return fmt.Errorf("%w: its checksum is wrong", ErrCorrupt)
	}
	r.state = header
	return nil
}

func (r *Reader) beginBlock() error {
	if r.last {
		r.last, r.state = false, trailer
		return nil
	}
	last, err := r.take(1)
	if err != nil {
		return err
	}
	kind, err := r.take(2)
	if err != nil {
		return err
	}
	r.last = last == 1
	switch kind {
	case 0:
		return r.beginStored()
	case 1:
		r.state = packed
		return r.fixedCodes()
	case 2:
		r.state = packed
		return r.readCodes()
	}
	return fmt.Errorf("%w: a block of no known kind", ErrCorrupt)
}

func (r *Reader) beginStored() error {
	if _, err := r.take(r.count % 8); err != nil {
		return err
	}
	size, err1 := r.take(16)
	inverse, err2 := r.take(16)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	if size != ^inverse&0xffff {
		return fmt.Errorf("%w: the size of a block is wrong", ErrCorrupt)
	}
	r.state, r.rest = stored, int(size)
	return nil
}

// copyStored copies of a block that is not packed, up to full.
func (r *Reader) copyStored(full int) error {
	for r.rest > 0 && r.done < full {
		if r.pos == r.end {
			if r.ended {
				return io.ErrUnexpectedEOF
			}
			if err := r.fill(); err != nil {
				return err
			}
			continue
		}
		n := copy(r.out[r.done:min(full, r.done+r.rest)], r.in[r.pos:r.end])
		r.done += n
		r.pos += n
		r.rest -= n
	}
	if r.rest == 0 {
		r.state = block
	}
	return nil
}
