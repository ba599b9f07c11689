package overlay

import (
	"encoding/binary"

	"berth.dev/berth/internal/base/linux"
)

// reassembly collects the fragments of a packet that was too large for the path
// and could not be segmented. A fragment that arrives out of order is dropped
// with its packet: few paths need fragments, and those rarely reorder.
type reassembly struct {
	frame []byte // the vnet header and the packet so far
	next  uint64 // the expected number
	index uint16 // the expected index
}

// add accepts the next fragment. After the last fragment it returns the frame, which is
// valid until the next call. malformed reports whether the fragment is invalid, and not
// only out of order.
func (w *reassembly) add(number uint64, datagram []byte) (frame []byte, malformed bool) {
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
