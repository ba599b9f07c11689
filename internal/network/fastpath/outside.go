package fastpath

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// What is no pod is reached by a socket of the host's that connects like any
// other, instead of by the user-mode stack that carries the other packets of pods
// to the outside. A caller that waits gets it when it is connected, one that must
// not wait at once: the kernel does for it what it does for all sockets.

// longest is how long the kernel may try to connect: it gives up by itself.
const maxConnect = time.Hour

// permits tells whether the policy permits a connection for certain.
func (s *Switch) permits(from netip.Addr, to netip.AddrPort, outside bool) bool {
	if outside {
		return s.config.Policy.PermitsOutside(from, to)
	}
	return s.config.Policy.Permits(from, to)
}

// sendTimeout is for how long a caller waits for its connect: SO_SNDTIMEO, which
// is longest where it is not set.
func sendTimeout(socket int) time.Duration {
	limit, err := unix.GetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO)
	if err != nil || limit.Sec == 0 && limit.Usec == 0 {
		return maxConnect
	}
	return min(maxConnect, time.Duration(limit.Nano()))
}

// reach begins to connect.
func (c *connecting) reach() {
	t := c.t
	fd, err := unix.Socket(domainOf(t.socket), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		c.fallBack(countNoPeer)
		return
	}
	c.fd = fd
	if c.ipv6 {
		// Whatever is the host's default, IPv4 addresses may be meant.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	// Sizes of buffers are of use only before. What may wait is set once more
	// when the caller gets it.
	t.from.pod.defaults.Load().copyChanged(t.socket, fd, c.ipv6)
	_ = unix.SetNonblock(fd, true)
	t.record.note(stageAsking, fd)
	c.reaching(connectTo(fd, c.target, c.ipv6))
}

// reachAgain goes on where a predecessor has ended, which may not have begun to
// connect.
func (c *connecting) reachAgain() {
	errno := connectTo(c.fd, c.target, c.ipv6)
	switch errno {
	case unix.EALREADY:
		errno = unix.EINPROGRESS
	case unix.EISCONN:
		errno = 0
	}
	c.reaching(errno)
}

// reaching goes on as the attempt to connect does.
func (c *connecting) reaching(errno unix.Errno) {
	flags, err := unix.FcntlInt(uintptr(c.t.socket), unix.F_GETFL, 0)
	switch {
	case errno == 0:
		c.install(0)
	case errno != unix.EINPROGRESS:
		c.fail(errno)
	case err == nil && flags&unix.O_NONBLOCK != 0:
		c.install(unix.EINPROGRESS)
	default:
		c.await()
	}
}

// reached finds out what has become of the attempt.
func (c *connecting) reached() {
	errno := option(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if errno == 0 && stateOf(c.fd) == tcpClose {
		errno = int(unix.ECONNABORTED) // a predecessor has read why
	}
	if errno != 0 {
		c.fail(unix.Errno(errno))
		return
	}
	c.install(0)
}

// lose tells the caller why there is no connection, unless that is for want of
// something that the pod has.
func (c *connecting) fail(errno unix.Errno) {
	switch errno {
	case unix.EADDRNOTAVAIL, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		c.fallBack(countNoPeer)
		return
	}
	c.end()
	c.t.refuse(countNotReached, errno)
}

// connectTo connects a socket, of IPv6 where ipv6 is set.
func connectTo(socket int, to netip.AddrPort, ipv6 bool) unix.Errno {
	return rawConnect(socket, rawAddress(to, ipv6))
}

// counted is what a switched socket of a client is counted as.
func (r *record) counted() count {
	if r.outside {
		return countOutside
	}
	return countConnected
}

const (
	tcpSynSent = 2 // TCP_SYN_SENT, of a socket that is about to be connected
	tcpClose   = 7 // TCP_CLOSE, of one that has not begun to connect, or has failed
)

func stateOf(socket int) int { return option(socket, unix.IPPROTO_TCP, unix.TCP_INFO) & 0xff }

// progress is what connect says of a switched socket that is still being
// connected, or has failed to be; 0 where it is connected.
func (r *record) progress(socket int) unix.Errno {
	if !r.outside {
		return 0
	}
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	waits := err != nil || flags&unix.O_NONBLOCK == 0
	if at := stateOf(socket); at == tcpSynSent || at == tcpClose && !waits {
		return unix.EINPROGRESS
	}
	return 0
}

// becomes answers a connect that asks what has become of an earlier one to the
// outside, once with its result as the kernel does. A socket that failed is of no
// more use: left to the kernel, it could be connected to anything of the host's.
func (s *Switch) reportOutcome(t *trap, socket int, cookie uint64, pending bool) {
	errno := unix.EISCONN
	switch stateOf(socket) {
	case tcpSynSent:
		t.answer(0, unix.EALREADY)
		return
	case tcpClose:
		errno = unix.ECONNABORTED
		if why := option(socket, unix.SOL_SOCKET, unix.SO_ERROR); why > 0 {
			errno = unix.Errno(why)
		}
	default:
		if pending {
			errno = 0
		}
	}
	s.mu.Lock()
	if known := s.known[cookie]; known != nil {
		known.pending = false
	}
	s.mu.Unlock()
	if errno == unix.EISCONN {
		s.counters.add(countReconnect)
	}
	t.answer(0, errno)
}
