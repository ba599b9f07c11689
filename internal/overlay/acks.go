package overlay

import (
	"encoding/binary"
	"time"

	"berth.dev/berth/internal/linux"
)

// An acknowledgement of much data costs as much on its way back as a third of
// that data on its way here, and the next one says all that it does. So a flow
// that acknowledges bulkAck bytes at once sends no more than one in ackEvery,
// or for ackMost bytes: what an interface does that moderates its interrupts.
const (
	bulkAck  = 24 << 10
	ackMost  = 512 << 10
	ackEvery = 100 * time.Microsecond
	ackFlows = 64 // a power of two
	// largestAck is the room that is needed before a held packet and the packet
	// with IPv6 and timestamps.
	largestAck = room + linux.VnetHeaderLen + ipv6Header + minTCPHeader + 12
)

// ackFlow is what is known of a flow that acknowledges.
type ackFlow struct {
	addresses [32]byte
	ports     [4]byte
	sent      uint32 // the number acknowledged last
	at        time.Time
	to        *peer
	held      []byte // the packet that waits, as send takes it; empty where none does
	buffer    [largestAck]byte
}

// ackHolder holds acknowledgements of one queue back.
type ackHolder struct {
	flows [ackFlows]ackFlow // each flow has one place that it may have
	held  int
	// lent says that send has a buffer of a flow, until the next flush.
	lent bool
}

// take tells whether it has taken a packet, whose frame begins room bytes into
// buffer, in order to send it later. It sends what must not come after it.
func (h *ackHolder) take(to *peer, buffer []byte, send func(*peer, []byte)) bool {
	number, ok := pureAck(buffer[room:])
	if !ok {
		return false
	}
	flow := h.flow(buffer[room:], number)
	if flow == nil {
		return false
	}
	advance := number - flow.sent
	if len(flow.held) > 0 && int32(number-heldNumber(flow.held)) <= 0 {
		// The same one again means something else to TCP.
		h.release(flow, send)
		return false
	}
	now := time.Now()
	if h.lent || advance < bulkAck || advance > ackMost || now.Sub(flow.at) >= ackEvery {
		h.drop(flow)
		flow.sent, flow.at = number, now
		return false
	}
	h.drop(flow)
	flow.to, flow.held = to, flow.buffer[:copy(flow.buffer[:], buffer)]
	h.held++
	return true
}

// flushed says that send uses no buffer any more.
func (h *ackHolder) flushed() { h.lent = false }

// drop forgets what a later acknowledgement says, too.
func (h *ackHolder) drop(flow *ackFlow) {
	if len(flow.held) > 0 {
		flow.held = flow.held[:0]
		h.held--
	}
}

func (h *ackHolder) release(flow *ackFlow, send func(*peer, []byte)) {
	if len(flow.held) == 0 {
		return
	}
	flow.sent, flow.at = heldNumber(flow.held), time.Now()
	send(flow.to, flow.held)
	h.lent = true
	h.drop(flow)
}

// due sends what was held long enough, or all, and returns for how long nothing
// else is; less than 0 where nothing is held.
func (h *ackHolder) due(all bool, send func(*peer, []byte)) time.Duration {
	least := time.Duration(-1)
	if h.held == 0 {
		return least
	}
	now := time.Now()
	for i := range h.flows {
		flow := &h.flows[i]
		if len(flow.held) == 0 {
			continue
		}
		left := ackEvery - now.Sub(flow.at)
		if left <= 0 || all {
			h.release(flow, send)
		} else if least < 0 || left < least {
			least = left
		}
	}
	return least
}

// flow finds that of an acknowledgement. It returns nil for one that it did not
// know, which takes the place of another unless that holds something.
func (h *ackHolder) flow(frame []byte, number uint32) *ackFlow {
	addresses, ports := flowOf(frame)
	place := binary.LittleEndian.Uint32(ports[:]) ^ binary.LittleEndian.Uint32(addresses[:]) ^ binary.LittleEndian.Uint32(addresses[4:])
	flow := &h.flows[place*2654435769>>26%ackFlows] // Knuth's multiplier
	if flow.ports == ports && flow.addresses == addresses {
		return flow
	}
	if len(flow.held) == 0 {
		flow.addresses, flow.ports, flow.sent, flow.at = addresses, ports, number, time.Now()
	}
	return nil
}

func flowOf(frame []byte) (addresses [32]byte, ports [4]byte) {
	packet := frame[linux.VnetHeaderLen:]
	if packet[0]>>4 == 4 {
		copy(addresses[:8], packet[12:20])
		copy(ports[:], packet[minIPv4Header:])
	} else {
		copy(addresses[:], packet[8:40])
		copy(ports[:], packet[ipv6Header:])
	}
	return addresses, ports
}

// pureAck returns the number that a TCP packet acknowledges which does nothing
// else: no data, no flag, no option but a timestamp.
func pureAck(frame []byte) (number uint32, ok bool) {
	packet := frame[linux.VnetHeaderLen:]
	if len(packet) > ipv6Header+minTCPHeader+12 || len(packet) < minIPv4Header+minTCPHeader || frame[vnetGSOType] != gsoNone {
		return 0, false
	}
	var tcp []byte
	switch {
	case packet[0] == 0x45 && packet[9] == protocolTCP && int(binary.BigEndian.Uint16(packet[2:])) == len(packet) &&
		binary.BigEndian.Uint16(packet[6:])&0x3fff == 0: // no fragment
		tcp = packet[minIPv4Header:]
	case packet[0]>>4 == 6 && packet[6] == protocolTCP && int(binary.BigEndian.Uint16(packet[4:]))+ipv6Header == len(packet) &&
		len(packet) >= ipv6Header+minTCPHeader:
		tcp = packet[ipv6Header:]
	default:
		return 0, false
	}
	const ackOnly, timestamp = 0x10, 0x0101080a
	if tcp[tcpFlagsOffset] != ackOnly || int(tcp[12]>>4)*4 != len(tcp) || tcp[12]&15 != 0 {
		return 0, false
	}
	switch {
	case len(tcp) == minTCPHeader:
	case len(tcp) == minTCPHeader+12 && binary.BigEndian.Uint32(tcp[minTCPHeader:]) == timestamp:
	default:
		return 0, false
	}
	return binary.BigEndian.Uint32(tcp[8:]), true
}

func heldNumber(buffer []byte) uint32 {
	number, _ := pureAck(buffer[room:])
	return number
}
