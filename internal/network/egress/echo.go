package egress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// handleICMP forwards echo requests through a ping socket (Linux 3.0), which
// needs no privilege if net.ipv4.ping_group_range includes a group of the user. It drops
// all other ICMP messages of pods: their errors do not reach the senders outside.
func (e *engine) handleICMP(protocol tcpip.NetworkProtocolNumber, pod, remote netip.Addr, packet *stack.PacketBuffer) {
	message := e.icmpMessage(protocol, pod, remote, packet)
	if message == nil {
		return
	}
	key := flowKey{header.ICMPv4ProtocolNumber, netip.AddrPortFrom(pod, binary.BigEndian.Uint16(message[4:])), netip.AddrPortFrom(remote, 0)}
	if protocol == header.IPv6ProtocolNumber {
		key.protocol = header.ICMPv6ProtocolNumber
	}
	switch e.policy.decide(remote) {
	case serve:
		e.sendEchoReply(key, message)
	case refuse:
		e.Counters.refused.Add(1)
		e.Log.Debug("refused echo request", "from", pod, "to", remote)
		e.sendUnreachable(prohibited, quoteEcho(key))
	case forward:
		flow, err := e.flows.find(key, openEcho)
		if err == nil {
			err = flow.send(message)
		}
		if err != nil {
			e.Log.Debug("echo request not sent", "from", pod, "to", remote, "error", err)
			e.rejectDatagram(key, err)
		}
	}
}

// icmpMessage copies a packet to scratch and returns the echo request in it. It returns nil
// if the packet is invalid or holds another message.
func (e *engine) icmpMessage(protocol tcpip.NetworkProtocolNumber, pod, remote netip.Addr, packet *stack.PacketBuffer) []byte {
	whole := e.flows.scratch[:min(packet.Data().Size(), datagram)]
	writer := tcpip.SliceWriter(whole)
	_, _ = packet.Data().ReadTo(&writer, true) // a slice of that size takes all
	if protocol == header.IPv4ProtocolNumber {
		ip := header.IPv4(whole)
		if !ip.IsValid(len(whole)) {
			e.Counters.dropped.Add(1)
			return nil
		}
		message := whole[ip.HeaderLength():ip.TotalLength()]
		if len(message) < header.ICMPv4MinimumSize || checksum.Checksum(message, 0) != 0xffff {
			e.Counters.dropped.Add(1)
			return nil
		}
		if header.ICMPv4(message).Type() != header.ICMPv4Echo {
			return nil
		}
		return message
	}
	ip := header.IPv6(whole)
	if !ip.IsValid(len(whole)) {
		e.Counters.dropped.Add(1)
		return nil
	}
	message := whole[header.IPv6MinimumSize:][:ip.PayloadLength()]
	sum := header.PseudoHeaderChecksum(header.ICMPv6ProtocolNumber, stackAddress(pod), stackAddress(remote), uint16(len(message)))
	if len(message) < header.ICMPv6EchoMinimumSize || checksum.Checksum(message, sum) != 0xffff {
		e.Counters.dropped.Add(1)
		return nil
	}
	if header.ICMPv6(message).Type() != header.ICMPv6EchoRequest {
		return nil
	}
	return message
}

// openEcho opens a ping socket. The kernel writes the identifier of the socket into each
// request, and the socket receives only replies with this identifier.
func openEcho(f *flow) error {
	family, protocol := unix.AF_INET, unix.IPPROTO_ICMP
	var to unix.Sockaddr = &unix.SockaddrInet4{Addr: [4]byte(f.key.remote.Addr().AsSlice())}
	if f.key.remote.Addr().Is6() {
		family, protocol = unix.AF_INET6, unix.IPPROTO_ICMPV6
		to = &unix.SockaddrInet6{Addr: f.key.remote.Addr().As16()}
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if errors.Is(err, unix.EACCES) {
		f.table.engine.warnEcho.Do(func() {
			f.table.engine.Log.Warn("pods cannot ping the outside, because their user cannot on this host: net.ipv4.ping_group_range excludes the groups of the user; an administrator can run: sysctl -w net.ipv4.ping_group_range='0 2147483647'")
		})
	}
	if err != nil {
		return fmt.Errorf("open ping socket: %w", err)
	}
	if err := unix.Connect(fd, to); err != nil {
		unix.Close(fd)
		return fmt.Errorf("connect ping socket to %s: %w", f.key.remote.Addr(), err)
	}
	file := os.NewFile(uintptr(fd), "ping")
	f.conn, f.deliver = file, func(message []byte) {
		if len(message) >= header.ICMPv4MinimumSize {
			f.table.engine.sendEchoReply(f.key, message)
		}
	}
	if f.raw, err = file.SyscallConn(); err != nil {
		file.Close()
	}
	return err
}

// sendEchoReply turns a request or a reply into the reply that the pod waits for, and sends
// it.
func (e *engine) sendEchoReply(key flowKey, message []byte) {
	message[0], message[1] = byte(header.ICMPv4EchoReply), 0
	if key.pod.Addr().Is6() {
		message[0] = byte(header.ICMPv6EchoReply)
	}
	binary.BigEndian.PutUint16(message[4:], key.pod.Port())
	e.sendICMP(key.remote.Addr(), key.pod.Addr(), message)
}

// quoteEcho quotes an echo request; errors are matched by its identifier.
func quoteEcho(key flowKey) quote {
	q := quote{pod: key.pod.Addr(), remote: key.remote.Addr(), protocol: key.protocol}
	q.transport[0] = byte(header.ICMPv4Echo)
	if key.protocol == header.ICMPv6ProtocolNumber {
		q.transport[0] = byte(header.ICMPv6EchoRequest)
	}
	binary.BigEndian.PutUint16(q.transport[4:], key.pod.Port())
	return q
}
