package overlay

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// A control message is a hello, which probes a path, or the answer to one. It is a
// datagram, or the beginning of a stream:
//
//	mac         14 bytes  HMAC-SHA-256 of the rest, truncated
//	kind         1        at the offset of a packet's vnet flags, whose highest
//	                      bit is never set
//	version      1
//	generation   8        hello: the path's generation; answer: the latest known
//	nonce       16        hello: the path's nonce; answer: the same
//	instance    16        answer: the receiver's nonce
//	sequence     4        hello: its number, or the queue's index in a stream; answer
//	                      to a datagram: the same
//	size         4        answer: the size of the hello, in bytes
//	from         4        the index of the sending node
//
// A hello in a datagram is padded to the size that it probes.
type control struct {
	kind       byte
	generation uint64
	nonce      nonce
	instance   nonce
	sequence   uint32
	size       uint32
	from       uint32
}

type nonce [16]byte

const (
	macLen         = atVnet
	atVersion      = macLen + 1
	atBody         = atVersion + 1
	controlLen     = atBody + 8 + 16 + 16 + 4 + 4 + 4
	controlVersion = 1

	kindHello        = 0x81
	kindAnswer       = 0x82
	kindStreamHello  = 0x83
	kindStreamAnswer = 0x84
)

// isControl reports whether a datagram of at least wireLen bytes is a control
// datagram.
func isControl(datagram []byte) bool { return datagram[atVnet]&^vnetFlagsKnown != 0 }

// controlKey derives the key that authenticates control messages from one node to
// another.
func controlKey(key []byte, from, to int) ([]byte, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, fmt.Sprintf("berth overlay control from %d to %d", from, to), sha256.Size)
	if err != nil {
		return nil, fmt.Errorf("derive the key from node %d to %d: %w", from, to, err)
	}
	return derived, nil
}

// encode writes the message to the start of b, which has at least controlLen
// bytes.
func (c control) encode(key, b []byte) {
	b[macLen], b[atVersion] = c.kind, controlVersion
	body := b[atBody:controlLen]
	binary.BigEndian.PutUint64(body, c.generation)
	copy(body[8:], c.nonce[:])
	copy(body[24:], c.instance[:])
	binary.BigEndian.PutUint32(body[40:], c.sequence)
	binary.BigEndian.PutUint32(body[44:], c.size)
	binary.BigEndian.PutUint32(body[48:], c.from)
	mac := controlMAC(key, b)
	copy(b[:macLen], mac[:])
}

// decodeControl decodes a message without authenticating it, see isProven. It returns
// false if the message is too short or has another version.
func decodeControl(b []byte) (c control, ok bool) {
	if len(b) < controlLen || b[atVersion] != controlVersion {
		return control{}, false
	}
	body := b[atBody:controlLen]
	c.kind = b[macLen]
	c.generation = binary.BigEndian.Uint64(body)
	copy(c.nonce[:], body[8:])
	copy(c.instance[:], body[24:])
	c.sequence = binary.BigEndian.Uint32(body[40:])
	c.size = binary.BigEndian.Uint32(body[44:])
	c.from = binary.BigEndian.Uint32(body[48:])
	return c, true
}

// isProven reports whether the message was written with the key.
func isProven(key, b []byte) bool {
	mac := controlMAC(key, b)
	return hmac.Equal(mac[:], b[:macLen])
}

func controlMAC(key, b []byte) (mac [macLen]byte) {
	h := hmac.New(sha256.New, key)
	h.Write(b[macLen:controlLen])
	copy(mac[:], h.Sum(nil))
	return mac
}

// purposeOf returns the unique name of the session that a hello and its answer
// have established.
func purposeOf(what string, from, to int, generation uint64, sender, receiver nonce) string {
	return fmt.Sprintf("berth overlay %s from %d to %d, generation %d, %x, %x", what, from, to, generation, sender, receiver)
}
