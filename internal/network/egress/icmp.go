package egress

import (
	"encoding/binary"
	"net/netip"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// reason tells why a packet did not reach its destination.
type reason int

const (
	netUnreachable reason = iota
	hostUnreachable
	portUnreachable
	prohibited
)

// codes holds the codes of "destination unreachable" in ICMP (RFC 792, RFC 1812) and
// ICMPv6 (RFC 4443).
var codes = map[reason]struct {
	v4 header.ICMPv4Code
	v6 header.ICMPv6Code
}{
	netUnreachable:  {header.ICMPv4NetUnreachable, header.ICMPv6NetworkUnreachable},
	hostUnreachable: {header.ICMPv4HostUnreachable, header.ICMPv6AddressUnreachable},
	portUnreachable: {header.ICMPv4PortUnreachable, header.ICMPv6PortUnreachable},
	prohibited:      {header.ICMPv4HostProhibited, header.ICMPv6Prohibited},
}

// quote holds the part of a pod's packet that an ICMP error repeats: the addresses, and the
// first eight bytes after the IP header. The pod's kernel finds the socket by them.
type quote struct {
	pod, remote netip.Addr
	protocol    tcpip.TransportProtocolNumber
	transport   [8]byte
}

func quoteTCP(pod, remote netip.AddrPort, sequence uint32) quote {
	q := quotePorts(pod, remote, header.TCPProtocolNumber)
	binary.BigEndian.PutUint32(q.transport[4:], sequence)
	return q
}

func quoteUDP(pod, remote netip.AddrPort) quote {
	q := quotePorts(pod, remote, header.UDPProtocolNumber)
	binary.BigEndian.PutUint16(q.transport[4:], header.UDPMinimumSize)
	return q
}

func quotePorts(pod, remote netip.AddrPort, protocol tcpip.TransportProtocolNumber) quote {
	q := quote{pod: pod.Addr(), remote: remote.Addr(), protocol: protocol}
	binary.BigEndian.PutUint16(q.transport[0:], pod.Port())
	binary.BigEndian.PutUint16(q.transport[2:], remote.Port())
	return q
}

// sendUnreachable reports to a pod that its packet did not arrive.
func (e *engine) sendUnreachable(why reason, about quote) {
	code := codes[why]
	if about.pod.Is4() {
		message := make([]byte, header.ICMPv4MinimumSize+header.IPv4MinimumSize+len(about.transport))
		icmp := header.ICMPv4(message)
		icmp.SetType(header.ICMPv4DstUnreachable)
		icmp.SetCode(code.v4)
		ip := header.IPv4(message[header.ICMPv4MinimumSize:])
		ip.Encode(&header.IPv4Fields{
			TotalLength: uint16(header.IPv4MinimumSize + len(about.transport)),
			TTL:         64,
			Protocol:    uint8(about.protocol),
			SrcAddr:     stackAddress(about.pod),
			DstAddr:     stackAddress(about.remote),
		})
		ip.SetChecksum(^ip.CalculateChecksum())
		copy(message[header.ICMPv4MinimumSize+header.IPv4MinimumSize:], about.transport[:])
		e.sendICMP(about.remote, about.pod, message)
		return
	}
	message := make([]byte, header.ICMPv6MinimumSize+header.IPv6MinimumSize+len(about.transport))
	icmp := header.ICMPv6(message)
	icmp.SetType(header.ICMPv6DstUnreachable)
	icmp.SetCode(code.v6)
	header.IPv6(message[header.ICMPv6MinimumSize:]).Encode(&header.IPv6Fields{
		PayloadLength:     uint16(len(about.transport)),
		TransportProtocol: about.protocol,
		HopLimit:          64,
		SrcAddr:           stackAddress(about.pod),
		DstAddr:           stackAddress(about.remote),
	})
	copy(message[header.ICMPv6MinimumSize+header.IPv6MinimumSize:], about.transport[:])
	e.sendICMP(about.remote, about.pod, message)
}

// sendICMP sends a message of ICMP or ICMPv6 to a pod. It fills in the checksum.
func (e *engine) sendICMP(from, pod netip.Addr, message []byte) {
	protocol := header.ICMPv4ProtocolNumber
	if pod.Is4() {
		icmp := header.ICMPv4(message)
		icmp.SetChecksum(0)
		icmp.SetChecksum(^checksum.Checksum(message, 0))
	} else {
		protocol = header.ICMPv6ProtocolNumber
		icmp := header.ICMPv6(message)
		icmp.SetChecksum(0)
		icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
			Header: icmp, Src: stackAddress(from), Dst: stackAddress(pod),
		}))
	}
	e.send(from, pod, protocol, nil, message)
}

// send sends a packet to a pod. The stack fragments a packet that exceeds the MTU.
func (e *engine) send(from, pod netip.Addr, protocol tcpip.TransportProtocolNumber, transport, payload []byte) {
	route, err := e.stack.FindRoute(nic, stackAddress(from), stackAddress(pod), networkOf(pod), false)
	if err != nil {
		e.Counters.dropped.Add(1)
		return
	}
	defer route.Release()
	packet := stack.NewPacketBuffer(stack.PacketBufferOptions{
		ReserveHeaderBytes: int(route.MaxHeaderLength()) + len(transport),
		Payload:            buffer.MakeWithData(payload),
	})
	defer packet.DecRef()
	if len(transport) > 0 {
		copy(packet.TransportHeader().Push(len(transport)), transport)
	}
	packet.TransportProtocolNumber = protocol
	if err := route.WritePacket(stack.NetworkHeaderParams{Protocol: protocol, TTL: route.DefaultTTL()}, packet); err != nil {
		e.Counters.dropped.Add(1)
	}
}
