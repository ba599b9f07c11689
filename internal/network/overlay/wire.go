package overlay

import (
	"encoding/binary"

	"berth.dev/berth/internal/base/linux"
)

// A datagram begins with
//
//	tag          8 bytes   authenticates the sender and prevents replay
//	number       4         number in the session, the lower half; big endian
//	index        2         index of the segment in the packet; big endian
//	vnet        10         struct virtio_net_hdr of the sender's device, with
//	                       headerLength and flags instead of hdr_len
//
// and continues with an IP packet, or with the IP and TCP headers of a segmented
// packet and the payload of one segment. Every segment has the headers of the
// whole packet, so that it can be delivered if others are lost. headerLength is
// the length of IP and TCP headers of a segment. It is 0 for a whole packet and
// for a fragment.
const (
	atNumber  = tagLen
	atIndex   = atNumber + 4
	atVnet    = atIndex + 2
	atHeaders = atVnet + vnetHeaders
	atFlags   = atHeaders + 1
	wireLen   = atVnet + linux.VnetHeaderLen

	tagLen       = 8
	flagLast     = 1 // the last segment or fragment of its packet
	flagFragment = 2 // a part of a packet that cannot be segmented
)

// Offsets and values of struct virtio_net_hdr, in native byte order, and of IP
// and transport headers. berth only runs on little-endian machines.
const (
	vnetFlags      = 0
	vnetGSOType    = 1
	vnetHeaders    = 2
	vnetGSOSize    = 4
	vnetSumStart   = 6
	vnetSumOffset  = 8
	needsChecksum  = 1
	vnetFlagsKnown = 7 // flags that the kernel defines; the highest bit marks control
	gsoNone        = 0
	gsoTCP4        = 1
	gsoTCP6        = 4
	gsoUDP         = 5
	gsoECN         = 0x80
	tcpSumOffset   = 16
	udpSumOffset   = 6
	maxPacket      = 1<<16 - 1
	maxUDPPayload  = 1<<16 - 1 - 20 - 8
	minTCPHeader   = 20
	minIPv4Header  = 20
	ipv6Header     = 40
	udpHeader      = 8
	protocolTCP    = 6
	protocolUDP    = 17
	tcpFlagsOffset = 13
	tcpFIN         = 0x01
	tcpPSH         = 0x08
	tcpCWR         = 0x80
)

// cut returns how to segment a frame, which is a vnet header and an IP packet:
// headers is the length of the packet's headers, and size the payload of a
// segment, so that no datagram is larger than limit. size is 0 for a frame that
// cannot be segmented, and negative if limit leaves no room for payload.
func cut(frame []byte, limit int) (headers, size int) {
	packet := frame[linux.VnetHeaderLen:]
	start := int(binary.NativeEndian.Uint16(frame[vnetSumStart:]))
	size = int(binary.NativeEndian.Uint16(frame[vnetGSOSize:]))
	if size == 0 || frame[vnetFlags]&needsChecksum == 0 {
		return 0, 0
	}
	switch {
	case isSuper(frame, packet, start, protocolTCP, minTCPHeader):
		headers = start + int(packet[start+12]>>4)*4
		if headers < start+minTCPHeader {
			return 0, 0
		}
		// TCP is a stream without boundaries, so segments may be smaller.
		size = min(size, limit-wireLen-headers)
	case isSuper(frame, packet, start, protocolUDP, udpHeader):
		headers = start + udpHeader
		if size > limit-wireLen-headers {
			return 0, 0
		}
	default:
		return 0, 0
	}
	if headers > maxCovered || len(packet) <= headers {
		return 0, 0
	}
	return headers, size
}

// isSuper reports whether a packet is a super-packet of the protocol, whose
// header begins at start. header is the minimum length of that header, in bytes.
func isSuper(vnet, packet []byte, start, protocol, header int) bool {
	kind4, kind6, offset := byte(gsoTCP4), byte(gsoTCP6), tcpSumOffset
	if protocol == protocolUDP {
		kind4, kind6, offset = gsoUDP, gsoUDP, udpSumOffset
	}
	kind := vnet[vnetGSOType] &^ gsoECN
	switch {
	case len(packet) < start+header || int(binary.NativeEndian.Uint16(vnet[vnetSumOffset:])) != offset:
		return false
	case kind == kind4 && packet[0]>>4 == 4:
		return start >= minIPv4Header && start == int(packet[0]&15)*4 && int(packet[9]) == protocol
	case kind == kind6 && packet[0]>>4 == 6:
		return start >= ipv6Header
	}
	return false
}

// sum adds the 16-bit words of b to initial, as the Internet checksum does (RFC 1071).
// If data is summed in several calls, only the last part may have an odd length.
func sum(b []byte, initial uint32) uint32 {
	for ; len(b) > 1; b = b[2:] {
		initial += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		initial += uint32(b[0]) << 8
	}
	return initial
}

// fold reduces a sum to the 16 bits of an Internet checksum, before its inversion.
func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
