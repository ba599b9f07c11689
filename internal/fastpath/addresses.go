package fastpath

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// readAddress reads a socket address as connect(2) would.
func (t *trap) readAddress(at uint64, length int) ([]byte, unix.Errno) {
	const storage = 128 // sizeof(struct sockaddr_storage)
	if length < 0 || length > storage {
		return nil, unix.EINVAL
	}
	b := make([]byte, length)
	if err := linux.ReadMemory(t.tid(), at, b); err != nil {
		return nil, unix.EFAULT
	}
	return b, 0
}

func family(address []byte) int {
	if len(address) < 2 {
		return -1
	}
	return int(binary.NativeEndian.Uint16(address))
}

// parseAddress returns the IPv4 address that a socket address stands for.
func parseAddress(b []byte) (address netip.AddrPort, mapped, ok bool) {
	switch {
	case family(b) == unix.AF_INET && len(b) >= unix.SizeofSockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:])), false, true
	case family(b) == unix.AF_INET6 && len(b) >= unix.SizeofSockaddrInet6:
		address := netip.AddrFrom16([16]byte(b[8:24]))
		return netip.AddrPortFrom(address.Unmap(), binary.BigEndian.Uint16(b[2:])), true, address.Is4In6()
	}
	return netip.AddrPort{}, false, false
}

// writeAddress gives the caller an address as accept(2) would.
func (t *trap) writeAddress(a netip.AddrPort, mapped bool, at, lengthAt uint64) unix.Errno {
	if at == 0 {
		return 0
	}
	var length [4]byte
	if err := linux.ReadMemory(t.tid(), lengthAt, length[:]); err != nil {
		return unix.EFAULT
	}
	space := int(int32(binary.NativeEndian.Uint32(length[:])))
	if space < 0 {
		return unix.EINVAL
	}
	var b [unix.SizeofSockaddrInet6]byte
	size := unix.SizeofSockaddrInet4
	binary.BigEndian.PutUint16(b[2:], a.Port())
	if mapped {
		size = unix.SizeofSockaddrInet6
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET6)
		full := a.Addr().As16()
		copy(b[8:], full[:])
	} else {
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET)
		full := a.Addr().As4()
		copy(b[4:], full[:])
	}
	binary.NativeEndian.PutUint32(length[:], uint32(size))
	// A caller that was interrupted may use its memory otherwise by now.
	if !t.waits() {
		return unix.EINTR
	}
	if err := linux.WriteMemory(t.tid(), at, b[:min(size, space)], lengthAt, length[:]); err != nil {
		return unix.EFAULT
	}
	return 0
}

func rawConnect(fd int, address *unix.RawSockaddr) error {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(address)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}

// rawAddress is an IPv4 address for the kernel.
func rawAddress(a netip.AddrPort) unix.RawSockaddrInet4 {
	port := a.Port()
	return unix.RawSockaddrInet4{Family: unix.AF_INET, Port: port<<8 | port>>8, Addr: a.Addr().As4()}
}

func localAddress(fd int) (netip.AddrPort, bool) {
	address, err := unix.Getsockname(fd)
	return addrPort(address, err)
}

func peerAddress(fd int) (netip.AddrPort, bool) {
	address, err := unix.Getpeername(fd)
	return addrPort(address, err)
}

// addrPort is an IPv4 address, mapped or not.
func addrPort(address unix.Sockaddr, err error) (netip.AddrPort, bool) {
	if err != nil {
		return netip.AddrPort{}, false
	}
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), true
	case *unix.SockaddrInet6:
		full := netip.AddrFrom16(a.Addr)
		return netip.AddrPortFrom(full.Unmap(), uint16(a.Port)), full.Is4In6() || full == netip.IPv6Unspecified()
	}
	return netip.AddrPort{}, false
}

// plainAddress is one that accept(2) returned.
func plainAddress(address unix.Sockaddr) netip.AddrPort {
	if in6, ok := address.(*unix.SockaddrInet6); ok {
		return netip.AddrPortFrom(netip.AddrFrom16(in6.Addr), uint16(in6.Port))
	}
	peer, _ := addrPort(address, nil)
	return peer
}
