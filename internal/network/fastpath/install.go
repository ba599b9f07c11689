package fastpath

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
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

// settings holds the options of a socket that a program may change.
type settings struct {
	values     [len(carried)]int
	congestion string
}

// defaultsOf reads the options of a new socket of a pod.
func defaultsOf(socket int) (o settings) {
	for i, c := range carried {
		o.values[i] = option(socket, c.level, c.name)
	}
	o.congestion, _ = unix.GetsockoptString(socket, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return o
}

// copyChanged copies the options that a program has changed from its socket to a
// connection. Other options keep the host's defaults. So do options that the host does not
// permit, such as a congestion control.
func (o *settings) copyChanged(from, to int, ipv6 bool) {
	if o == nil {
		return // the pod has not called since this process started
	}
	for i, c := range carried {
		if value := option(from, c.level, c.name); value >= 0 && value != o.values[i] {
			_ = unix.SetsockoptInt(to, c.level, c.name, value)
		}
	}
	if ipv6 {
		for _, name := range carriedIPv6 {
			if value := option(from, unix.IPPROTO_IPV6, name); value >= 0 && value != option(to, unix.IPPROTO_IPV6, name) {
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

// watchAgain adds a connection to an epoll instance of the caller, where it replaces the
// old socket. The kernel identifies an entry by file and number, so a thread with its
// own table of descriptors has to add it under the caller's number.
func (t *trap) watchAgain(epoll, number, connection int, w watch) error {
	instance, err := unix.PidfdGetfd(t.thread, epoll, 0)
	if err != nil {
		return fmt.Errorf("fetch epoll instance %d of thread %d: %w", epoll, t.tid(), err)
	}
	defer unix.Close(instance)
	linux.OnNewThread(func() { err = addUnder(instance, number, connection, w) })
	if err != nil {
		return fmt.Errorf("add descriptor %d to epoll instance %d of thread %d: %w", number, epoll, t.tid(), err)
	}
	return nil
}

func addUnder(instance, number, connection int, w watch) error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return err
	}
	// A copy in this table must not keep closed files open, least of all the replaced
	// socket, which epoll would go on reporting. close_range accepts any valid range, and
	// the thread ends with its table.
	defer func() { _ = unix.CloseRange(0, math.MaxUint32, 0) }()
	if instance == number {
		moved, err := unix.FcntlInt(uintptr(instance), unix.F_DUPFD_CLOEXEC, number+1)
		if err != nil {
			return err
		}
		instance = moved
	}
	if connection != number {
		if err := unix.Dup3(connection, number, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	err := unix.EpollCtl(instance, unix.EPOLL_CTL_ADD, number, &unix.EpollEvent{
		Events: w.events, Fd: int32(uint32(w.data)), Pad: int32(uint32(w.data >> 32)),
	})
	if errors.Is(err, unix.EEXIST) {
		return nil // a predecessor has done it
	}
	return err
}
