package overlay

import (
	"bytes"
	"encoding/binary"
)

// UDP packets that a pod sends one by one also travel one by one. But packets
// that the host's kernel delivers at once are coalesced and written to the device
// as one super-packet, which the pods' kernel segments again. One write for many
// packets is cheaper, because each packet costs as much as a kilobyte of data. Only
// packets with an incomplete checksum are coalesced, because the kernel computes the
// checksums when it segments the super-packet.

// plainUDP returns the length of the IP and UDP headers if the datagram holds a
// UDP packet that can be coalesced, and 0 otherwise.
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

// joins reports whether a datagram continues a run of UDP packets: it belongs to
// the same flow, and is as long as the first one, or shorter and then the last.
// The IPv4 identification may differ, because these packets are never fragmented
// (RFC 6864).
func (g *coalescer) joins(from *source, datagram []byte) bool {
	headers := plainUDP(datagram)
	if g.ended || from != g.from || headers != g.headers || len(datagram) > len(g.first) || g.count == maxSegmentsPerBatch || g.length+len(datagram) > maxPacket {
		return false
	}
	packet, first := datagram[wireLen:], g.first[wireLen:]
	if headers == ipv6Header+udpHeader {
		return bytes.Equal(packet[:4], first[:4]) && bytes.Equal(packet[6:headers-4], first[6:headers-4])
	}
	return packet[1] == first[1] && packet[8] == first[8] && bytes.Equal(packet[12:headers-4], first[12:headers-4])
}
