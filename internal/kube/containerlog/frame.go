package containerlog

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Kind is the type of a frame.
type Kind byte

// Kinds of frames. A KindPosition acknowledges the frames before it: a client that
// continues at its position does not receive them again. Frames after the last
// KindPosition are sent again on the next connection.
const (
	KindStdout   Kind = 'o' // bytes of the container's standard output
	KindStderr   Kind = 'e' // bytes of its standard error
	KindPosition Kind = 'p' // JSON of a Progress
	KindLoss     Kind = 'l' // JSON of a LostPart
	KindAlive    Kind = 'a' // nothing to send at the moment
	KindEnd      Kind = 'z' // the log is complete
	KindUnknown  Kind = 'u' // there is no log of this container
)

// maxFrame bounds the payload of a frame, in bytes.
const maxFrame = 16 << 20

// Frame is the unit of the stream from the node to the client: one byte for the
// kind, four bytes for the length in network order, and the payload.
type Frame struct {
	Kind Kind
	Data []byte
}

// Position is a place in the log of a container. The zero value is its beginning.
type Position struct {
	// Generation counts the restarts of the container.
	Generation int `json:"g,omitempty"`
	// Segment is the first time stamp of a file. It identifies the file
	// before and after its rotation; empty means the first file.
	Segment string `json:"s,omitempty"`
	// Offset is the offset in the file, in bytes.
	Offset int64 `json:"o,omitempty"`
}

// Progress is the payload of KindPosition.
type Progress struct {
	Position
	// Behind counts the bytes in the log's files after the position.
	Behind int64 `json:"b,omitempty"`
	// Unwritten counts the bytes of output that the runtime could not write to the
	// log, in all runs of the container.
	Unwritten int64 `json:"w,omitempty"`
}

// Loss is the size of a lost part.
type Loss struct {
	// Lines and Bytes count the lost output of the container. Both are 0 if the amount
	// is unknown.
	Lines int64 `json:"lines,omitempty"`
	Bytes int64 `json:"bytes,omitempty"`
}

// LostPart is the payload of KindLoss.
type LostPart struct {
	Loss
	// Cause is empty if the client was too slow.
	Cause string `json:"cause,omitempty"`
}

// Write writes the frame to w.
func (f Frame) Write(w io.Writer) error {
	var head [5]byte
	head[0] = byte(f.Kind)
	binary.BigEndian.PutUint32(head[1:], uint32(len(f.Data)))
	if _, err := w.Write(head[:]); err != nil {
		return err
	}
	_, err := w.Write(f.Data)
	return err
}

// WriteJSON writes a frame whose payload is the JSON of value.
func WriteJSON(w io.Writer, kind Kind, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode frame %c: %w", kind, err)
	}
	return Frame{kind, encoded}.Write(w)
}

// ReadFrame reads one frame. It returns io.EOF if r ends before the frame, and an error
// that wraps io.ErrUnexpectedEOF if r ends in its payload.
func ReadFrame(r *bufio.Reader) (Frame, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return Frame{}, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length > maxFrame {
		return Frame{}, fmt.Errorf("read frame %q: %d bytes are more than %d", head[0], length, maxFrame)
	}
	f := Frame{Kind: Kind(head[0]), Data: make([]byte, length)}
	if _, err := io.ReadFull(r, f.Data); err != nil {
		return Frame{}, fmt.Errorf("read frame %q: %w", head[0], io.ErrUnexpectedEOF)
	}
	return f, nil
}
