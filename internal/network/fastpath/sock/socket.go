package sock

import (
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Namespace returns a descriptor of a socket's network namespace. The caller closes it.
func Namespace(socket int) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(socket), unix.SIOCGSKNS, 0)
	if errno != 0 {
		return -1, fmt.Errorf("find the network namespace of a socket: %w", errno)
	}
	return int(fd), nil
}

// Disconnect resets the connection of a TCP socket, which can then connect again.
func Disconnect(socket int) error {
	if errno := Connect(socket, make([]byte, unix.SizeofSockaddrInet4)); errno != 0 { // AF_UNSPEC
		return errno
	}
	return nil
}

// NetworkCookie returns the kernel's number of a socket's network namespace.
func NetworkCookie(socket int) (uint64, error) {
	return unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}

// Cookie returns the kernel's unique number of a socket.
func Cookie(socket int) (uint64, error) {
	return unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_COOKIE)
}

// Option returns an integer option of a socket, or -1. It bypasses Go's scheduler,
// which would double its cost, because getsockopt never blocks.
func Option(socket, level, name int) int {
	var value int32
	length := uint32(unsafe.Sizeof(value))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(socket), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(&value)), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return -1
	}
	return int(value)
}

// Domain returns the address family of a socket.
func Domain(socket int) int { return Option(socket, unix.SOL_SOCKET, unix.SO_DOMAIN) }

// IsInet reports whether a socket has the family IPv4 or IPv6.
func IsInet(socket int) bool {
	domain := Domain(socket)
	return domain == unix.AF_INET || domain == unix.AF_INET6
}

// New makes a TCP socket for addresses of one family. It is an IPv6 socket even for IPv4
// addresses, unless the kernel has no IPv6: a program with an IPv6 socket can then use all
// its options, and ToIPv4 converts it for others. The kernel cannot convert the other way.
func New(like netip.Addr) (fd int, ipv6 bool, err error) {
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

// ToIPv4 converts a connection for a program with an IPv4 socket. A connection
// between IPv6 hosts, or one that the other side has already ended, stays an IPv6
// socket. It works as well, but SO_DOMAIN shows the difference.
func ToIPv4(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_ADDRFORM, unix.AF_INET)
}

// MaxConnect exceeds the time after which the kernel gives up connecting.
const MaxConnect = time.Hour

// SendTimeout returns how long a caller waits for its connect: SO_SNDTIMEO, or
// MaxConnect if that is not set.
func SendTimeout(socket int) time.Duration {
	limit, err := unix.GetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil || limit.Sec == 0 && limit.Usec == 0 {
		return MaxConnect
	}
	return min(MaxConnect, time.Duration(limit.Nano()))
}

// TCP states that State returns.
const (
	SynSent = 2 // TCP_SYN_SENT: the socket is connecting
	Closed  = 7 // TCP_CLOSE: the socket has not begun to connect, or has failed
)

// State returns the TCP state of a socket, or 255 if the socket has none.
func State(socket int) int { return Option(socket, unix.IPPROTO_TCP, unix.TCP_INFO) & 0xff }

// Reset closes a connection with a reset.
func Reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	unix.Close(fd)
}

// Polled returns which of the events are pending, without waiting. It returns 0 if
// there are none.
func Polled(fd int, events int16) int16 {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	if n, err := unix.Poll(p, 0); n <= 0 || err != nil {
		return 0
	}
	return p[0].Revents
}

// CloseAll closes the descriptors that are positive.
func CloseAll(fds ...int) {
	for _, fd := range fds {
		if fd > 0 {
			unix.Close(fd)
		}
	}
}

// Sent returns the number of bytes that programs have written to a connection. It returns
// 0 if the kernel does not tell.
func Sent(fd int) uint64 {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0
	}
	return info.Bytes_sent - info.Bytes_retrans + uint64(info.Notsent_bytes)
}
