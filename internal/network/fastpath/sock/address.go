package sock

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Family returns the address family of a socket address, or -1.
func Family(address []byte) int {
	if len(address) < 2 {
		return -1
	}
	return int(binary.NativeEndian.Uint16(address))
}

// Parse parses a socket address. ipv6 is set for AF_INET6, which includes
// mapped IPv4 addresses.
func Parse(b []byte) (address netip.AddrPort, ipv6, ok bool) {
	switch {
	case Family(b) == unix.AF_INET && len(b) >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), false, true
	case Family(b) == unix.AF_INET6 && len(b) >= unix.SizeofSockaddrInet6:
		address := netip.AddrFrom16([16]byte(b[8:24]))
		return netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(b[2:])), true, true
	}
	return netip.AddrPort{}, false, false
}

// Connect calls connect(2) and returns its errno, 0 on success.
func Connect(fd int, address []byte) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address[0])), uintptr(len(address)))
	return errno
}

// handshakeTries bounds the calls of ConnectInside. A call takes less than a microsecond,
// and a deferred handshake usually ends within twenty of them.
const handshakeTries = 100

// ConnectInside connects a non-blocking socket to a listener in the same network namespace.
// It returns EALREADY if the listener's queue is full. Such a handshake is usually over when
// connect(2) returns. But the kernel may defer it: to ksoftirqd, or to another processor
// (receive packet steering). Then further calls await it, because each one also processes
// the packets that were deferred on its processor. A wait that sleeps would delay all
// connections to a pod with a full queue.
func ConnectInside(fd int, address []byte) unix.Errno {
	errno := Connect(fd, address)
	for try := 0; try < handshakeTries && (errno == unix.EINPROGRESS || errno == unix.EALREADY); try++ {
		errno = Connect(fd, address)
	}
	return errno
}

// Raw returns a socket address for the kernel. An IPv4 address is mapped if
// ipv6 is set.
func Raw(a netip.AddrPort, ipv6 bool) []byte {
	if !ipv6 && a.Addr().Is4() {
		b := make([]byte, unix.SizeofSockaddrInet4)
		binary.NativeEndian.PutUint16(b, unix.AF_INET)
		binary.BigEndian.PutUint16(b[2:], a.Port())
		full := a.Addr().As4()
		copy(b[4:], full[:])
		return b
	}
	b := make([]byte, unix.SizeofSockaddrInet6)
	binary.NativeEndian.PutUint16(b, unix.AF_INET6)
	binary.BigEndian.PutUint16(b[2:], a.Port())
	full := a.Addr().As16()
	copy(b[8:], full[:])
	if link, err := strconv.ParseUint(a.Addr().Zone(), 10, 32); err == nil {
		binary.NativeEndian.PutUint32(b[24:], uint32(link))
	}
	return b
}

// Local returns the local address of a socket.
func Local(fd int) (netip.AddrPort, bool) {
	address, err := unix.Getsockname(fd)
	return AddrPort(address, err)
}

// Peer returns the address that a socket is connected to.
func Peer(fd int) (netip.AddrPort, bool) {
	address, err := unix.Getpeername(fd)
	return AddrPort(address, err)
}

// AddrPort converts the result of a system call. It unmaps IPv4 addresses.
func AddrPort(address unix.Sockaddr, err error) (netip.AddrPort, bool) {
	if err != nil {
		return netip.AddrPort{}, false
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), true
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port)), true
	}
	return netip.AddrPort{}, false
}

// Accept accepts a connection and returns its peer, with the zone of a link-local
// address.
//
// The kernel closes an accepted connection if it cannot write the peer's address. That
// happens if the page was never touched and the process is being killed, and a
// successor could not find the connection. unix.Accept4 passes new memory; this stack
// has been written to.
func Accept(listener, flags int) (fd int, peer netip.AddrPort, errno unix.Errno) {
	var raw [unix.SizeofSockaddrInet6]byte
	length := uint32(len(raw))
	accepted, _, errno := unix.Syscall6(unix.SYS_ACCEPT4, uintptr(listener),
		uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&length)), uintptr(flags), 0, 0)
	if errno != 0 {
		return -1, netip.AddrPort{}, errno
	}
	peer, ipv6, _ := Parse(raw[:])
	if link := binary.NativeEndian.Uint32(raw[24:]); ipv6 && link != 0 {
		peer = netip.AddrPortFrom(peer.Addr().WithZone(strconv.FormatUint(uint64(link), 10)), peer.Port())
	}
	return int(accepted), peer, 0
}

// ConnectTo connects a socket, which is an IPv6 socket if ipv6 is set.
func ConnectTo(socket int, to netip.AddrPort, ipv6 bool) unix.Errno {
	return Connect(socket, Raw(to, ipv6))
}
