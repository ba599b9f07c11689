package overlay

import (
	"encoding/binary"
	"time"

	"berth.dev/berth/internal/base/linux"
)

// In a bulk transfer, acknowledgements cost a third as much as the data, and each
// supersedes the one before. A flow whose acknowledgement covers at least bulkAck bytes
// therefore sends only one per ackInterval, or one per maxAckBytes. The interrupt
// moderation of a network card has the same effect.
const (
	bulkAck     = 24 << 10  // bytes
	maxAckBytes = 512 << 10 // bytes
	ackInterval = 100 * time.Microsecond
	ackFlows    = 64 // a power of two
	// largestAck is the size in bytes of a held packet: headroom, IPv6 and TCP with
	// timestamps.
	largestAck = headroom + linux.VnetHeaderLen + ipv6Header + minTCPHeader + 12
)

// ackFlow holds the state of a flow that sends acknowledgements.
type ackFlow struct {
	addresses [32]byte
	ports     [4]byte
	sent      uint32    // the acknowledgement number sent last
	at        time.Time // when it was sent
	to        *peer     // the receiver of held
	held      []byte    // the delayed packet with its headroom; empty if there is none
	buffer    [largestAck]byte
}

// ackHolder delays acknowledgements of one queue.
type ackHolder struct {
	flows [ackFlows]ackFlow // a hash table without chaining
	held  int               // number of flows with a held packet
	// lent reports whether send may still use the buffer of a flow. That ends with the
	// next flush.
	lent bool
}

// take holds a packet to send it later, and reports whether it did. If not, the caller
// sends the packet. The frame begins headroom bytes into buffer. take itself sends a held
// packet that must go first.
func (h *ackHolder) take(to *peer, buffer []byte, send func(*peer, []byte)) bool {
	number, ok := pureAck(buffer[headroom:])
	if !ok {
		return false
	}
	flow := h.flow(buffer[headroom:], number)
	if flow == nil {
		return false
	}
	advance := number - flow.sent
	if len(flow.held) > 0 && int32(number-heldNumber(flow.held)) <= 0 {
		// TCP counts duplicate acknowledgements to detect loss, so none may be dropped.
		h.release(flow, send)
		return false
	}
	now := time.Now()
	if h.lent || advance < bulkAck || advance > maxAckBytes || now.Sub(flow.at) >= ackInterval {
		h.drop(flow)
		flow.sent, flow.at = number, now
		return false
	}
	h.drop(flow)
	flow.to, flow.held = to, flow.buffer[:copy(flow.buffer[:], buffer)]
	h.held++
	return true
}

// flushed must be called after a flush, when send no longer uses a buffer of a flow.
func (h *ackHolder) flushed() { h.lent = false }

// drop discards the held packet, which a later acknowledgement supersedes.
func (h *ackHolder) drop(flow *ackFlow) {
	if len(flow.held) > 0 {
		flow.held = flow.held[:0]
		h.held--
	}
}

// release sends the held packet of a flow, if there is one.
func (h *ackHolder) release(flow *ackFlow, send func(*peer, []byte)) {
	if len(flow.held) == 0 {
		return
	}
	flow.sent, flow.at = heldNumber(flow.held), time.Now()
	send(flow.to, flow.held)
	h.lent = true
	h.drop(flow)
}

// due sends the held packets whose delay has passed. It returns the time until the next
// packet is due, or a negative time if no packet is held.
func (h *ackHolder) due(send func(*peer, []byte)) time.Duration {
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
		left := ackInterval - now.Sub(flow.at)
		if left <= 0 {
			h.release(flow, send)
		} else if least < 0 || left < least {
			least = left
		}
	}
	return least
}

// flow returns the flow of an acknowledgement. For a new flow it returns nil, and stores
// the flow unless its slot belongs to a flow with a held packet.
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

// flowOf returns the addresses and ports in the headers of a packet.
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

// pureAck returns the acknowledgement number of a TCP packet that is only an
// acknowledgement: without data, other flags, or options other than timestamps.
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

// heldNumber returns the acknowledgement number of a held packet.
func heldNumber(buffer []byte) uint32 {
	number, _ := pureAck(buffer[headroom:])
	return number
}
