package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// handleUDP forwards a datagram of a pod. It runs on the goroutine that reads the
// device and must not wait. It returns false to make the stack answer "port unreachable".
func (e *engine) handleUDP(ctx context.Context, id stack.TransportEndpointID, packet *stack.PacketBuffer) bool {
	udp := header.UDP(packet.TransportHeader().Slice())
	lengthOK, sumOK := header.UDPValid(udp, packet.Data().Checksum, uint16(packet.Data().Size()),
		packet.NetworkProtocolNumber, id.RemoteAddress, id.LocalAddress, packet.RXChecksumValidated)
	if !lengthOK || !sumOK {
		e.Counters.dropped.Add(1)
		return true
	}
	pod, remote := endpoints(id)
	decision := e.policy.decide(remote.Addr())
	if decision == refuse || decision == serve && remote.Port() != dnsPort {
		e.Counters.refused.Add(1)
		e.Log.Debug("refused datagram", "from", pod, "to", remote)
		return false
	}
	size := min(int(udp.Length())-header.UDPMinimumSize, packet.Data().Size())
	payload := e.flows.scratch[:size]
	writer := tcpip.SliceWriter(payload)
	_, _ = packet.Data().ReadTo(&writer, true) // a slice of that size takes all
	if decision == serve {
		e.answerQuery(ctx, pod, payload)
		return true
	}
	flow, err := e.flows.find(flowKey{header.UDPProtocolNumber, pod, remote}, e.openUDP)
	if err == nil {
		err = flow.send(payload)
	}
	if err != nil {
		e.Log.Debug("datagram not sent", "from", pod, "to", remote, "error", err)
		e.rejectDatagram(flowKey{header.UDPProtocolNumber, pod, remote}, err)
	} else {
		e.Counters.fromPods.Add(uint64(size))
	}
	return true
}

// openUDP opens the host's socket of a flow. All flows of one socket of a pod
// share one port of the host, as they do behind a router that follows RFC 4787
// (REQ-1); protocols that punch holes depend on it.
func (e *engine) openUDP(f *flow) error {
	network, anyAddress := "udp4", netip.IPv4Unspecified()
	if f.key.remote.Addr().Is6() {
		network, anyAddress = "udp6", netip.IPv6Unspecified()
	}
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		var failure error
		err := raw.Control(func(fd uintptr) {
			failure = errors.Join(
				// Only sockets of the same user can share a port this way.
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1),
				// The library allows broadcasts on every socket.
				unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BROADCAST, 0))
		})
		return errors.Join(err, failure)
	}}
	port, shared := e.flows.hostPort(f.key.pod)
	if shared {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(anyAddress, port))
	}
	// Dial does not block, because the address is numeric and UDP has no handshake.
	conn, err := dialer.Dial(network, f.key.remote.String())
	if errors.Is(err, unix.EADDRINUSE) {
		shared, dialer.LocalAddr = false, nil
		conn, err = dialer.Dial(network, f.key.remote.String())
	}
	if err != nil {
		return err
	}
	udp := conn.(*net.UDPConn)
	f.conn, f.deliver = udp, f.deliverUDP
	if f.raw, err = udp.SyscallConn(); err != nil {
		udp.Close()
		return err
	}
	if shared {
		// Between bind and connect anyone could have sent to the socket.
		f.discard()
	}
	f.port = udp.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	return nil
}

// deliverUDP sends a datagram from the outside on to the pod.
func (f *flow) deliverUDP(payload []byte) {
	f.table.engine.Counters.toPods.Add(uint64(len(payload)))
	f.table.engine.sendUDP(f.key.remote, f.key.pod, payload)
}

// sendUDP sends a datagram to a pod.
func (e *engine) sendUDP(from, pod netip.AddrPort, payload []byte) {
	udp := make(header.UDP, header.UDPMinimumSize)
	length := uint16(len(payload) + header.UDPMinimumSize)
	udp.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: pod.Port(), Length: length})
	sum := header.PseudoHeaderChecksum(header.UDPProtocolNumber, stackAddress(from.Addr()), stackAddress(pod.Addr()), length)
	sum = ^udp.CalculateChecksum(checksum.Checksum(payload, sum))
	if sum == 0 {
		sum = 0xffff // RFC 768: zero means that there is no checksum.
	}
	udp.SetChecksum(sum)
	e.send(from.Addr(), pod.Addr(), header.UDPProtocolNumber, udp, payload)
}

// rejectDatagram reports to a pod why a datagram of a UDP or echo flow did not arrive. It
// only counts an error that has no equivalent in ICMP.
func (e *engine) rejectDatagram(key flowKey, err error) {
	about := quoteUDP(key.pod, key.remote)
	if key.protocol != header.UDPProtocolNumber {
		about = quoteEcho(key)
	}
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		e.sendUnreachable(portUnreachable, about)
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.EHOSTDOWN):
		e.sendUnreachable(hostUnreachable, about)
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		e.sendUnreachable(netUnreachable, about)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		e.sendUnreachable(prohibited, about)
	default:
		e.Counters.dropped.Add(1)
		e.warnOfShortage(err)
		return
	}
	e.Counters.failed.Add(1)
}
