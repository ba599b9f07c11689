package overlay

import (
	"bytes"
	"encoding/binary"
)

// Datagrams that a pod sends one by one travel one by one, but what the host's
// kernel hands out at once is written to the device as one packet, which the
// pods' kernel cuts again: a packet costs as much as a kilobyte. Only those are
// joined whose checksum the sender's kernel has left open.

// plainUDP is the length of the IP and UDP headers of a packet in a datagram
// that can be joined with others, and 0 of any other.
func plainUDP(datagram []byte) (headers int) {
	vnet, packet := datagram[atVnet:wireLen], datagram[wireLen:]
	start := int(binary.NativeEndian.Uint16(vnet[vnetSumStart:]))
	if datagram[atHeaders] != 0 || datagram[atFlags] != flagLast || vnet[vnetFlags] != needsChecksum || vnet[vnetGSOType] != gsoNone ||
		binary.NativeEndian.Uint16(vnet[vnetSumOffset:]) != udpSumOffset || len(packet) <= start+udpHeader {
		return 0
	}
	const dontFragment = 0x4000
	switch {
	case packet[0] == 0x45 && start == minIPv4Header && packet[9] == protocolUDP &&
		binary.BigEndian.Uint16(packet[6:]) == dontFragment && int(binary.BigEndian.Uint16(packet[2:])) == len(packet):
	case packet[0]>>4 == 6 && start == ipv6Header && packet[6] == protocolUDP &&
		int(binary.BigEndian.Uint16(packet[4:])) == len(packet)-ipv6Header:
	default:
		return 0
	}
	if int(binary.BigEndian.Uint16(packet[start+4:])) != len(packet)-start {
		return 0
	}
	return start + udpHeader
}

// joins tells whether a datagram belongs to the flow of the one that the run
// begins with, and is as long, or shorter and thereby the last. The number in
// the IP header may differ: it means nothing in what is never fragmented.
func (g *gluer) joins(from *source, datagram []byte) bool {
	headers := plainUDP(datagram)
	if g.ended || from != g.from || headers != g.headers || len(datagram) > len(g.first) || g.count == maxTrain || g.length+len(datagram) > maxPacket {
		return false
	}
	packet, first := datagram[wireLen:], g.first[wireLen:]
	if headers == ipv6Header+udpHeader {
		return bytes.Equal(packet[:4], first[:4]) && bytes.Equal(packet[6:headers-4], first[6:headers-4])
	}
	return packet[1] == first[1] && packet[8] == first[8] && bytes.Equal(packet[12:headers-4], first[12:headers-4])
}
