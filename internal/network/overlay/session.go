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

// session authenticates the datagrams of one direction between two sockets, or
// of a stream. A tag derived from a shared secret authenticates a datagram, and a
// number prevents replay. Both sides contribute a nonce to the secret when they
// start, so that no datagram of an earlier session is accepted.
//
// The tag is a Carter-Wegman code: a strongly universal hash of the covered
// bytes (multilinear, over words of 64 bits, modulo 2^128), plus a one-time pad
// (AES of the number). A forgery succeeds with probability 2^-64. The tag covers
// the wire header, the length, and the headers of the inner packet with its
// addresses. The payload is as safe as it is without the overlay; covering it
// would cost more than everything else together.
type session struct {
	block cipher.Block
	keys  [hashWords + 1]hashKey
	next  uint64 // the next number; used by the sender's goroutine only

	// Pads are computed in runs, because most numbers are consecutive. padAt is the
	// number of the first pad.
	pads      [padRun]uint64
	padAt     uint64
	stream    cipher.Stream // yields the run after pads; nil before the first
	keystream [8 * padRun]byte

	// The latest inner headers and their part of the hash. All segments of a
	// packet, and often many packets, share them.
	last    [maxCovered]byte
	lastLen int
	lastSum hashKey
}

type hashKey struct{ high, low uint64 }

const (
	// maxCovered is the largest part of the inner packet, in bytes, that a tag
	// covers. All headers of a segment fit.
	maxCovered = 255
	// wholeCovered is the covered part of a packet that was not segmented, in
	// bytes. The headers of IPv6 and TCP with options fit.
	wholeCovered = 80
	hashWords    = wireWords + (maxCovered+7)/8
	padRun       = 64
)

// newSession derives a session from the key of the job. purpose is unique to the
// session: it contains the identities and nonces of both sides.
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

// covered returns the length of the part of a datagram that its tag covers. The
// part starts after the tag; the length includes it.
func covered(datagram []byte) int {
	if headers := int(datagram[atHeaders]); headers > 0 {
		return min(len(datagram), wireLen+headers)
	}
	return min(len(datagram), wireLen+wholeCovered)
}

// tag returns the tag of a datagram with the number and length. head is its
// covered part.
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

// wireWords is the number of 64-bit words of the wire header after the tag. They
// use the keys after the first, which is for the length.
const wireWords = (wireLen - tagLen) / 8

// sum returns the part of the hash that covers the inner headers.
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

// pad returns the one-time pad of a number: eight bytes of the key stream of AES
// in counter mode.
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
		// The number is out of order; a whole run would not pay off.
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

// seal writes the number and tag of the next datagram. head is its covered part,
// and length the length of the whole datagram.
func (s *session) seal(head []byte, length int) {
	binary.BigEndian.PutUint32(head[atNumber:], uint32(s.next))
	binary.LittleEndian.PutUint64(head, s.tag(s.next, head, length))
	s.next++
}

// receiving is the receiver's side of a session.
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

// open returns a datagram's full number and reports whether the datagram is
// authentic and new. The datagram has at least a wire header.
func (r *receiving) open(datagram []byte) (uint64, verdict) {
	number := r.window.number(binary.BigEndian.Uint32(datagram[atNumber:]))
	if r.tag(number, datagram[:covered(datagram)], len(datagram)) != binary.LittleEndian.Uint64(datagram) {
		return number, forged
	}
	if !r.window.take(number) {
		return number, replayed
	}
	if number >= r.padAt+2*padRun {
		r.stream = nil // a run was lost; continue with the run of this number
	}
	return number, genuine
}

// window is a sliding window of received numbers (RFC 6479). All numbers below
// the window count as received.
type window struct {
	top  uint64 // the largest number plus one
	seen [windowWords]uint64
}

// The window is large enough for some milliseconds of reordering on a fast
// network. One word less is usable, because the word that contains top is only
// partly filled.
const (
	windowWords = 128
	windowSize  = (windowWords - 1) * 64
)

// number returns the number nearest to top whose lower half is low.
func (w *window) number(low uint32) uint64 {
	return w.top + uint64(int64(int32(low-uint32(w.top))))
}

// take marks a number as received and reports whether it is new. A number below the
// window is not.
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
