package fastpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Sockets between the hosts are IPv6 sockets, with mapped addresses between IPv4 hosts.
// So a program with an IPv6 socket receives one that supports all its options. The
// kernel can convert such a socket to IPv4, but not the other way round.

// hostSocket makes a socket of the host's network for addresses of one family. ipv6 is
// false if it is an IPv4 socket, because the kernel has no IPv6.
func hostSocket(like netip.Addr) (fd int, ipv6 bool, err error) {
	const kind = unix.SOCK_STREAM | unix.SOCK_NONBLOCK | unix.SOCK_CLOEXEC
	fd, err = unix.Socket(unix.AF_INET6, kind, unix.IPPROTO_TCP)
	if err == nil {
		if err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0); err == nil {
			return fd, true, nil
		}
		unix.Close(fd)
	}
	if like.Is4() {
		fd, err = unix.Socket(unix.AF_INET, kind, unix.IPPROTO_TCP)
	}
	if err != nil {
		return -1, false, fmt.Errorf("make a socket: %w", err)
	}
	return fd, false, nil
}

// becomeIPv4 converts a connection for a program with an IPv4 socket. A connection
// between IPv6 hosts, or one that the other side has already ended, stays an IPv6
// socket. It works as well, but SO_DOMAIN shows the difference.
func becomeIPv4(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_ADDRFORM, unix.AF_INET)
}

func sockaddrOf(at netip.AddrPort, ipv6 bool) unix.Sockaddr {
	if ipv6 {
		return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
	}
	return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
}

// Listen makes a socket for Config.Listeners.
func Listen(at netip.AddrPort) (*net.TCPListener, error) {
	fd, ipv6, err := hostSocket(at.Addr())
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	const queue = 1<<16 - 1 // the kernel also has a limit
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err == nil {
		err = unix.Bind(fd, sockaddrOf(at, ipv6))
	}
	if err == nil {
		err = unix.Listen(fd, queue)
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", at, err)
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", at, err)
	}
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen at %s: %w", at, unix.EPROTOTYPE), listener.Close())
	}
	return tcp, nil
}
