package rendezvous

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// A frame is a byte that says its kind, the length of its content in four
// bytes, big-endian, and the content.
const (
	frameProof   = 'p' // a credential
	frameWelcome = 'w' // the worker belongs to the step now
	frameRefusal = 'r' // a refusal, JSON
	frameMessage = 'm' // a message of the caller's, JSON
	frameBeat    = 'b' // a sign of life, empty
	frameClose   = 'c' // the end on purpose: the reason
)

const (
	frameHeader = 5
	// maxProof bounds a frame before the proof: munge's encoding makes a claim
	// longer by a third and a little.
	maxProof = 2 * maxClaim
	// maxReason bounds what one side tells the other in words.
	maxReason = 4 << 10
)

func frame(kind byte, content []byte) []byte {
	out := make([]byte, frameHeader, frameHeader+len(content))
	out[0] = kind
	binary.BigEndian.PutUint32(out[1:], uint32(len(content)))
	return append(out, content...)
}

// readFrame returns the next frame, whose content has at most limit bytes.
// Nothing is set aside for more than that, whatever the header says.
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

// refusal is why the head does not take a worker.
type refusal struct {
	Reason string `json:"reason"`
	// Final: asking again is of no use.
	Final bool `json:"final"`
}

func (r refusal) encode() []byte {
	r.Reason = shorten(r.Reason)
	text, _ := json.Marshal(r) // strings and a bool: cannot fail
	return text
}

// shorten keeps a text within what a frame may hold, also when JSON escapes
// each of its bytes.
func shorten(text string) string {
	if len(text) > maxReason/8 {
		return text[:maxReason/8] + "..."
	}
	return text
}
