package fastpath

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

func sockaddrOf(at netip.AddrPort, ipv6 bool) unix.Sockaddr {
	if ipv6 {
		return &unix.SockaddrInet6{Addr: at.Addr().As16(), Port: int(at.Port())}
	}
	return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
}

// Listen returns a listener for Config.Listeners, at an address and port of the host.
func Listen(at netip.AddrPort) (*net.TCPListener, error) {
	fd, ipv6, err := sock.New(at.Addr())
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "listener")
	defer file.Close()
	const queue = 1<<16 - 1 // net.core.somaxconn limits it
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
