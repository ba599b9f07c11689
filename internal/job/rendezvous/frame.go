package rendezvous

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// A frame consists of a byte for its kind, the length of its content in four bytes
// (big-endian), and the content.
const (
	frameProof   = 'p' // a credential
	frameWelcome = 'w' // the head has accepted the worker
	frameRefusal = 'r' // a refusal, JSON
	frameMessage = 'm' // a message of the caller, JSON
	frameBeat    = 'b' // a heartbeat, empty
	frameClose   = 'c' // a farewell: the reason
)

const (
	frameHeader = 5
	// maxProof bounds a frame before the proof. munge's encoding makes a claim
	// longer by slightly more than a third.
	maxProof = 2 * maxClaim
	// maxReason bounds the length of a reason, in bytes.
	maxReason = 4 << 10
)

// frame returns a frame with content.
func frame(kind byte, content []byte) []byte {
	out := make([]byte, frameHeader, frameHeader+len(content))
	out[0] = kind
	binary.BigEndian.PutUint32(out[1:], uint32(len(content)))
	return append(out, content...)
}

// readFrame returns the next frame, whose content has at most limit bytes. It never
// allocates more, regardless of the header.
func readFrame(from io.Reader, limit int) (kind byte, content []byte, err error) {
	var header [frameHeader]byte
	if _, err := io.ReadFull(from, header[:]); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint32(header[1:])
	if uint64(length) > uint64(limit) {
		return 0, nil, fmt.Errorf("read a frame of kind %q: it has %d bytes, at most %d are allowed", header[0], length, limit)
	}
	content = make([]byte, length)
	if _, err := io.ReadFull(from, content); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return header[0], content, nil
}

// refusal is the head's reason to reject a worker.
type refusal struct {
	Reason string `json:"reason"`
	// Final means that another attempt would be useless.
	Final bool `json:"final"`
}

func (r refusal) encode() []byte {
	r.Reason = shorten(r.Reason)
	text, _ := json.Marshal(r) // strings and a bool: cannot fail
	return text
}

// shorten truncates a text to the size of a frame, even if JSON escapes each byte.
func shorten(text string) string {
	if len(text) > maxReason/8 {
		return text[:maxReason/8] + "..."
	}
	return text
}
