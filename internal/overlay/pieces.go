package overlay

import (
	"encoding/binary"

	"berth.dev/berth/internal/linux"
)

// whole is a packet that arrives in pieces: one too large for the path, which
// cannot be cut into segments. Pieces that do not arrive in order are lost, and
// the packet with them: paths that need them are few, and swap little.
type whole struct {
	frame []byte // the vnet header and what is there of the packet
	next  uint64 // the number that follows
	index uint16
}

// add takes the next piece and returns the frame with the last. The frame is
// good until the next call.
func (w *whole) add(number uint64, datagram []byte) (frame []byte, malformed bool) {
	index := binary.BigEndian.Uint16(datagram[atIndex:])
	payload := datagram[wireLen:]
	switch {
	case len(payload) == 0 || datagram[atHeaders] != 0:
		w.frame = w.frame[:0]
		return nil, true
	case index == 0:
		w.frame = append(w.frame[:0], datagram[atVnet:wireLen]...)
	case len(w.frame) == 0 || number != w.next || index != w.index:
		w.frame = w.frame[:0]
		return nil, false
	}
	if len(w.frame)+len(payload) > linux.VnetHeaderLen+maxPacket {
		w.frame = w.frame[:0]
		return nil, true
	}
	w.frame = append(w.frame, payload...)
	w.next, w.index = number+1, index+1
	if datagram[atFlags]&flagLast == 0 {
		return nil, false
	}
	frame = w.frame
	w.frame = w.frame[:0]
	return frame, false
}
