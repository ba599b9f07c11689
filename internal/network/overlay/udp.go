package overlay

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socketBuffer is the requested size of socket buffers, in bytes. The host's
// rmem_max and wmem_max limit it.
const socketBuffer = 8 << 20

// setUpSocket makes the kernel coalesce arriving datagrams, and disables IP
// fragmentation and path MTU discovery. The overlay probes the size of datagrams
// itself, because anybody can forge ICMP messages.
func setUpSocket(conn *net.UDPConn, log *slog.Logger) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	// A smaller buffer only costs speed.
	_ = conn.SetReadBuffer(socketBuffer)
	_ = conn.SetWriteBuffer(socketBuffer)
	ipv6, err := isIPv6(conn)
	if err != nil {
		return err
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		if err := unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
			log.Info("the kernel does not coalesce datagrams (UDP_GRO); the network between nodes is slower", "error", err)
		}
		// IPv6 sockets send to IPv4 addresses, too.
		failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
		if ipv6 {
			failure = errors.Join(failure, unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE))
		}
	})
	if err := errors.Join(err, failure); err != nil {
		return fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	return nil
}

// sendControl sends one datagram, and ignores errors: the prober repeats its hellos. Any
// thread may call it while Run runs.
func (q *queue) sendControl(datagram []byte, to *unix.RawSockaddrInet6) {
	_, _, _ = unix.Syscall6(unix.SYS_SENDTO, uintptr(q.socket), uintptr(unsafe.Pointer(&datagram[0])), uintptr(len(datagram)), unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(to)), uintptr(addressLen(to)))
}

// isIPv6 reports whether a socket has the family AF_INET6. It may be dual-stack.
func isIPv6(conn *net.UDPConn) (bool, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	var domain int
	var failure error
	err = raw.Control(func(fd uintptr) { domain, failure = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) })
	if err := errors.Join(err, failure); err != nil {
		return false, fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	return domain == unix.AF_INET6, nil
}

func addressLen(raw *unix.RawSockaddrInet6) uint32 {
	if raw.Family == unix.AF_INET {
		return unix.SizeofSockaddrInet4
	}
	return unix.SizeofSockaddrInet6
}
