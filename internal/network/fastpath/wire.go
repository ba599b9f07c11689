package fastpath

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// A Switch sends a challenge at once to whoever connects. Before the connection is used,
// the other side sends a preamble: source, target, a nonce, and a seal over these and the
// challenge. The answer is a verdict with a seal over it and the preamble. All later bytes
// belong to the pods.
//
// Both sides prove that they have the job's key, in the one round trip that a connect takes
// anyway. Neither message is valid on another connection.
const (
	challengeLen = 16
	sealLen      = 16
	magic        = 0x62667031 // "bfp1"
	// magic, nodes, two addresses with ports, nonce, seal
	preambleLen = 4 + 2 + 2 + 2*(16+2) + challengeLen + sealLen
	answerLen   = 1 + sealLen
)

// verdict is the answer of the node that a preamble was sent to.
type verdict byte

const (
	verdictConnected verdict = 1 + iota // the connection now belongs to the pods
	verdictRefused                      // the pod has no such listener
	verdictOverlay                      // the connection must go through the overlay
)

type challenge [challengeLen]byte

// preamble requests a connection between two pods.
type preamble struct {
	from, to         int // nodes
	source, target   netip.AddrPort
	nonce, challenge challenge
}

// pairKey derives the key of connections that one node makes to another.
func pairKey(key []byte, from, to int) ([]byte, error) {
	return hkdf.Key(sha256.New, key, nil, fmt.Sprintf("berth fast path 1, node %d to node %d", from, to), 32)
}

func seal(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		mac.Write(part)
	}
	return mac.Sum(nil)[:sealLen]
}

func (p preamble) encode(key []byte) (b [preambleLen]byte) {
	body := binary.BigEndian.AppendUint32(b[:0], magic)
	body = binary.BigEndian.AppendUint16(body, uint16(p.from))
	body = binary.BigEndian.AppendUint16(body, uint16(p.to))
	for _, end := range []netip.AddrPort{p.source, p.target} {
		address := end.Addr().As16()
		body = append(body, address[:]...)
		body = binary.BigEndian.AppendUint16(body, end.Port())
	}
	body = append(body, p.nonce[:]...)
	copy(b[len(body):], seal(key, []byte("ask"), p.challenge[:], body))
	return b
}

var errForged = errors.New("not sealed by a node of the job")

// decodePreamble returns the preamble that answers the challenge, and the key of its node.
// It returns errForged if the seal is invalid. keyOf returns the key of connections from a
// node, or nil.
func decodePreamble(b *[preambleLen]byte, c challenge, keyOf func(from int) []byte) (preamble, []byte, error) {
	body, sealed := b[:preambleLen-sealLen], b[preambleLen-sealLen:]
	if binary.BigEndian.Uint32(body) != magic {
		return preamble{}, nil, errForged
	}
	p := preamble{
		from: int(binary.BigEndian.Uint16(body[4:])), to: int(binary.BigEndian.Uint16(body[6:])),
		source: sourceOf(b), target: targetOf(b), nonce: challenge(body[44:60]), challenge: c,
	}
	key := keyOf(p.from)
	if key == nil {
		return preamble{}, nil, errForged
	}
	if subtle.ConstantTimeCompare(sealed, seal(key, []byte("ask"), c[:], body)) != 1 {
		return p, key, errForged
	}
	return p, key, nil
}

func decodeEnd(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[:16])).Unmap(), binary.BigEndian.Uint16(b[16:]))
}

func sourceOf(b *[preambleLen]byte) netip.AddrPort { return decodeEnd(b[8:]) }
func targetOf(b *[preambleLen]byte) netip.AddrPort { return decodeEnd(b[26:]) }

func encodeAnswer(v verdict, key []byte, asked *[preambleLen]byte) (b [answerLen]byte) {
	b[0] = byte(v)
	copy(b[1:], seal(key, []byte("answer"), b[:1], asked[:]))
	return b
}

func decodeAnswer(b *[answerLen]byte, key []byte, asked *[preambleLen]byte) (verdict, error) {
	if subtle.ConstantTimeCompare(b[1:], seal(key, []byte("answer"), b[:1], asked[:])) != 1 {
		return 0, errForged
	}
	return verdict(b[0]), nil
}
