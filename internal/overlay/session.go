package overlay

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
)

// session is what one direction between two sockets, or a stream, has in
// common: a secret, from which every datagram gets a tag that proves where it
// comes from, and a number, so that none is taken twice. The receiver's part
// of the secret is new each time it starts, and the sender's each time it
// does: nothing from before fits.
//
// The tag is a Carter-Wegman code: a strongly universal hash of what is
// covered (multilinear, over words of 64 bits, modulo 2^128), plus a pad that
// is used once (AES of the number). Forging one succeeds with 2^-64. Covered
// are the wire header, the length, and the headers of the inner packet: where
// it comes from and goes to. The payload is as safe as it is without the
// overlay; covering it too would cost more than all the rest.
type session struct {
	block cipher.Block
	keys  [hashWords + 1]hashKey
	next  uint64 // the sender's; of its goroutine only

	// A run of pads is made at once: numbers mostly follow each other.
	pads      [padRun]uint64
	padAt     uint64
	stream    cipher.Stream // of the run that follows pads; nil before there are any
	keystream [8 * padRun]byte

	// The inner headers that were covered last, with what they add to the
	// hash: all segments of a packet, and often many packets, have the same.
	last    [mostCovered]byte
	lastLen int
	lastSum hashKey
}

type hashKey struct{ high, low uint64 }

const (
	// mostCovered is the most of the inner packet, in bytes, that a tag
	// covers: all headers of a segment have room.
	mostCovered = 255
	// wholeCovered is how much of a packet is covered that was not cut: the
	// headers of IPv6, TCP and its options.
	wholeCovered = 80
	hashWords    = wireWords + (mostCovered+7)/8
	padRun       = 64
)

// newSession derives a session from the key of the job. purpose tells it from
// any other: all of both sides' identity and nonces is in it.
func newSession(key []byte, purpose string) (*session, error) {
	secret, err := hkdf.Key(sha256.New, key, nil, purpose, 16+(hashWords+1)*16)
	if err != nil {
		return nil, fmt.Errorf("derive the secret of a session: %w", err)
	}
	s := &session{}
	if s.block, err = aes.NewCipher(secret[:16]); err != nil {
		return nil, fmt.Errorf("derive the secret of a session: %w", err)
	}
	for i := range s.keys {
		part := secret[16+16*i:]
		s.keys[i] = hashKey{binary.LittleEndian.Uint64(part), binary.LittleEndian.Uint64(part[8:])}
	}
	return s, nil
}

// covered is how many bytes of a datagram its tag covers, from the start; the
// tag itself is left out.
func covered(datagram []byte) int {
	if headers := int(datagram[atHeaders]); headers > 0 {
		return min(len(datagram), wireLen+headers)
	}
	return min(len(datagram), wireLen+wholeCovered)
}

// tag returns that of a datagram of length bytes with the number, of which
// head is the covered part.
func (s *session) tag(number uint64, head []byte, length int) uint64 {
	inner := head[wireLen:]
	if len(inner) != s.lastLen || !bytes.Equal(inner, s.last[:len(inner)]) {
		s.lastLen, s.lastSum = copy(s.last[:], inner), s.sum(inner)
	}
	sum := s.lastSum
	sum.add(uint64(length), s.keys[0])
	sum.add(binary.LittleEndian.Uint64(head[tagLen:]), s.keys[1])
	sum.add(binary.LittleEndian.Uint64(head[tagLen+8:]), s.keys[2])
	return sum.high + s.pad(number)
}

// The words of the wire header have the first keys but for one, which is the
// length's.
const wireWords = (wireLen - tagLen) / 8

// sum is what the inner headers add to the hash.
func (s *session) sum(data []byte) (sum hashKey) {
	keys := s.keys[1+wireWords:]
	for len(data) >= 8 && len(keys) > 1 {
		sum.add(binary.LittleEndian.Uint64(data), keys[0])
		data, keys = data[8:], keys[1:]
	}
	if len(data) > 0 {
		var last [8]byte
		copy(last[:], data)
		sum.add(binary.LittleEndian.Uint64(last[:]), keys[0])
	}
	return sum
}

// add adds word times key, modulo 2^128.
func (h *hashKey) add(word uint64, key hashKey) {
	high, low := bits.Mul64(word, key.low)
	var carry uint64
	h.low, carry = bits.Add64(h.low, low, 0)
	h.high, _ = bits.Add64(h.high, high+word*key.high, carry)
}

// pad is the part of a tag that belongs to the number alone: the stream of AES
// in counter mode, eight bytes for each.
func (s *session) pad(number uint64) uint64 {
	if s.stream != nil && number-s.padAt < padRun {
		return s.pads[number-s.padAt]
	}
	run := number &^ (padRun - 1)
	var first [aes.BlockSize]byte
	switch {
	case s.stream == nil:
		binary.BigEndian.PutUint64(first[8:], run/2)
		s.stream = cipher.NewCTR(s.block, first[:])
	case run != s.padAt+padRun:
		// From elsewhere, or late: not worth a run.
		binary.BigEndian.PutUint64(first[8:], number/2)
		s.block.Encrypt(first[:], first[:])
		return binary.LittleEndian.Uint64(first[number%2*8:])
	}
	clear(s.keystream[:])
	s.stream.XORKeyStream(s.keystream[:], s.keystream[:])
	for i := range s.pads {
		s.pads[i] = binary.LittleEndian.Uint64(s.keystream[8*i:])
	}
	s.padAt = run
	return s.pads[number-run]
}

// seal gives the next datagram its number and tag. head is the datagram as far
// as it is covered, length that of all of it.
func (s *session) seal(head []byte, length int) {
	binary.BigEndian.PutUint32(head[atNumber:], uint32(s.next))
	binary.LittleEndian.PutUint64(head, s.tag(s.next, head, length))
	s.next++
}

// receiving is the other side of a session.
type receiving struct {
	*session
	window window
}

// verdict on a datagram.
type verdict int

const (
	genuine verdict = iota
	forged
	replayed
)

// open tells whether a datagram is the peer's and comes for the first time. It
// returns its whole number. The datagram has a wire header at least.
func (r *receiving) open(datagram []byte) (uint64, verdict) {
	number := r.window.number(binary.BigEndian.Uint32(datagram[atNumber:]))
	if r.tag(number, datagram[:covered(datagram)], len(datagram)) != binary.LittleEndian.Uint64(datagram) {
		return number, forged
	}
	if !r.window.take(number) {
		return number, replayed
	}
	if number >= r.padAt+2*padRun {
		r.stream = nil // a run was lost: go on with this one
	}
	return number, genuine
}

// window remembers which numbers were seen: all below it count as seen.
type window struct {
	top  uint64 // one more than the largest
	seen [windowWords]uint64
}

// A window holds what some milliseconds of a fast network can put out of
// order. The word that top is in is not whole.
const (
	windowWords = 128
	windowSize  = (windowWords - 1) * 64
)

// number is the one nearest to the top that ends like low.
func (w *window) number(low uint32) uint64 {
	return w.top + uint64(int64(int32(low-uint32(w.top))))
}

func (w *window) take(number uint64) bool {
	if number >= w.top {
		from, to := (w.top+63)/64, number/64
		if to-from >= windowWords && to >= from {
			from = to - windowWords + 1
		}
		for word := from; word <= to; word++ {
			w.seen[word%windowWords] = 0
		}
		w.top = number + 1
	} else if w.top-number > windowSize {
		return false
	}
	word, bit := &w.seen[number/64%windowWords], uint64(1)<<(number%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	return true
}
