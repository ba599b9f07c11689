package overlay

import (
	"encoding/binary"

	"berth.dev/berth/internal/linux"
)

// A datagram is
//
//	tag          8 bytes   what proves that the peer sent it, and not before
//	number       4         of the datagram in its session, the lower half; big endian
//	index        2         of the segment in the packet; big endian
//	vnet        10         struct virtio_net_hdr, as the sender's device gave it,
//	                       but with headerLength and flags in place of hdr_len
//
// and then an IP packet, or the IP and TCP headers of a packet that was cut
// and the payload of one segment. The headers are those of the whole packet in
// each segment, so that the loss of one costs no other. headerLength is that
// of IP and TCP in a segment, 0 for a whole packet and for a piece of one that
// cannot be cut into segments.
const (
	atNumber  = tagLen
	atIndex   = atNumber + 4
	atVnet    = atIndex + 2
	atHeaders = atVnet + vnetHeaders
	atFlags   = atHeaders + 1
	wireLen   = atVnet + linux.VnetHeaderLen

	tagLen    = 8
	flagLast  = 1 // the segment or piece is the last of its packet
	flagPiece = 2 // the datagram is a part of a packet and nothing else
)

// The fields of struct virtio_net_hdr, in the byte order of the machine, and
// their values. All machines that berth runs on are little endian.
const (
	vnetFlags      = 0
	vnetGSOType    = 1
	vnetHeaders    = 2
	vnetGSOSize    = 4
	vnetSumStart   = 6
	vnetSumOffset  = 8
	needsChecksum  = 1
	vnetFlagsKnown = 7 // what the kernel defines; the highest bit marks control
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

// cut tells how a frame, a vnet header and an IP packet, is to be cut: into
// segments of size bytes after the first headers bytes of the packet, so that
// no datagram is larger than limit. A frame that travels as it is has size 0.
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
		// A stream has no boundaries: smaller segments are as good.
		size = min(size, limit-wireLen-headers)
	case isSuper(frame, packet, start, protocolUDP, udpHeader):
		headers = start + udpHeader
		if size > limit-wireLen-headers {
			return 0, 0
		}
	default:
		return 0, 0
	}
	if headers > mostCovered || len(packet) <= headers {
		return 0, 0
	}
	return headers, size
}

// isSuper tells whether a packet, whose header of the protocol is at start, is
// one that the sender left to be cut.
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

// sum adds 16-bit words, as the Internet checksum does. len(b) is even but
// for the last part.
func sum(b []byte, initial uint32) uint32 {
	for ; len(b) > 1; b = b[2:] {
		initial += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		initial += uint32(b[0]) << 8
	}
	return initial
}

func fold(s uint32) uint16 {
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}
