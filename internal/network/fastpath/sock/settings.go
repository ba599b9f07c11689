package sock

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// carried lists options that a program may have set before connect, and that an accepted
// socket inherits from its listener.
var carried = [...]struct{ level, name int }{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE},
	{unix.SOL_SOCKET, unix.SO_OOBINLINE},
	{unix.SOL_SOCKET, unix.SO_PRIORITY},
	{unix.SOL_SOCKET, unix.SO_RCVLOWAT},
	{unix.SOL_SOCKET, unix.SO_ZEROCOPY},
	{unix.IPPROTO_IP, unix.IP_TOS},
	{unix.IPPROTO_IP, unix.IP_TTL},
	{unix.IPPROTO_IP, unix.IP_RECVTOS},
	{unix.IPPROTO_TCP, unix.TCP_NODELAY},
	{unix.IPPROTO_TCP, unix.TCP_CORK},
	{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
	{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
	{unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
	{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
	{unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT},
	{unix.IPPROTO_TCP, unix.TCP_LINGER2},
}

// carriedIPv6 lists further options of IPv6 sockets.
var carriedIPv6 = [...]int{unix.IPV6_TCLASS, unix.IPV6_UNICAST_HOPS, unix.IPV6_RECVTCLASS}

// Settings holds the values of the carried options of a socket.
type Settings struct {
	values     [len(carried)]int
	congestion string
}

// SettingsOf reads the options of a new socket, which has the defaults of its namespace.
func SettingsOf(socket int) (o Settings) {
	for i, c := range carried {
		o.values[i] = Option(socket, c.level, c.name)
	}
	o.congestion, _ = unix.GetsockoptString(socket, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return o
}

// CopyChanged copies the options that a program has changed from its socket to a
// connection. Other options keep the host's defaults. So do options that the host does not
// permit, such as a congestion control.
func (o *Settings) CopyChanged(from, to int, ipv6 bool) {
	if o == nil {
		return // the pod has not called since this process started
	}
	for i, c := range carried {
		if value := Option(from, c.level, c.name); value >= 0 && value != o.values[i] {
			_ = unix.SetsockoptInt(to, c.level, c.name, value)
		}
	}
	if ipv6 {
		for _, name := range carriedIPv6 {
			if value := Option(from, unix.IPPROTO_IPV6, name); value >= 0 && value != Option(to, unix.IPPROTO_IPV6, name) {
				_ = unix.SetsockoptInt(to, unix.IPPROTO_IPV6, name, value)
			}
		}
	}
	for _, name := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		if value, err := unix.GetsockoptTimeval(from, unix.SOL_SOCKET, name); err == nil && (value.Sec != 0 || value.Usec != 0) {
			_ = unix.SetsockoptTimeval(to, unix.SOL_SOCKET, name, value)
		}
	}
	if value := getLinger(from); value.Onoff != 0 {
		_ = unix.SetsockoptLinger(to, unix.SOL_SOCKET, unix.SO_LINGER, &value)
	}
	copyBuffers(from, to)
	if value, err := unix.GetsockoptString(from, unix.IPPROTO_TCP, unix.TCP_CONGESTION); err == nil && value != o.congestion {
		_ = unix.SetsockoptString(to, unix.IPPROTO_TCP, unix.TCP_CONGESTION, value)
	}
	if flags, err := unix.FcntlInt(uintptr(from), unix.F_GETFL, 0); err == nil {
		_, _ = unix.FcntlInt(uintptr(to), unix.F_SETFL, flags&(unix.O_NONBLOCK|unix.O_ASYNC))
	}
}

// copyBuffers copies buffer sizes that the program has set (SO_BUF_LOCK, Linux 5.14).
// The kernel adapts the others.
func copyBuffers(from, to int) {
	const lockedSend, lockedReceive = 1, 2
	locked, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, unix.SO_BUF_LOCK)
	if err != nil {
		return
	}
	for bit, name := range map[int]int{lockedSend: unix.SO_SNDBUF, lockedReceive: unix.SO_RCVBUF} {
		if locked&bit == 0 {
			continue
		}
		if value, err := unix.GetsockoptInt(from, unix.SOL_SOCKET, name); err == nil {
			_ = unix.SetsockoptInt(to, unix.SOL_SOCKET, name, value/2) // the kernel doubles it
		}
	}
}

func getLinger(fd int) (value unix.Linger) {
	length := uint32(unsafe.Sizeof(value))
	_, _, _ = unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_LINGER,
		uintptr(unsafe.Pointer(&value)), uintptr(unsafe.Pointer(&length)), 0)
	return value
}
