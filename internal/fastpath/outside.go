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
const longest = time.Hour

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
		return longest
	}
	return min(longest, time.Duration(limit.Nano()))
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
	// Sizes of buffers are of use only before. What may wait is set once more
	// when the caller gets it.
	t.from.pod.defaults.Load().copyChanged(t.socket, fd, c.six)
	_ = unix.SetNonblock(fd, true)
	t.record.note(stageAsking, fd)
	c.reaching(connectTo(fd, c.target, c.six))
}

// reaching goes on as the attempt to connect does.
func (c *connecting) reaching(errno unix.Errno) {
	flags, err := unix.FcntlInt(uintptr(c.t.socket), unix.F_GETFL, 0)
	switch {
	case errno == 0:
		c.install(0)
	case errno != unix.EINPROGRESS:
		c.lose(errno)
	case err == nil && flags&unix.O_NONBLOCK != 0:
		c.install(unix.EINPROGRESS)
	default:
		c.await()
	}
}

// reached finds out what has become of the attempt.
func (c *connecting) reached() {
	if errno := option(c.fd, unix.SOL_SOCKET, unix.SO_ERROR); errno != 0 {
		c.lose(unix.Errno(errno))
		return
	}
	c.install(0)
}

// lose tells the caller why there is no connection, unless that is for want of
// something that the pod has.
func (c *connecting) lose(errno unix.Errno) {
	switch errno {
	case unix.EADDRNOTAVAIL, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		c.fallBack(countNoPeer)
		return
	}
	c.end()
	c.t.refuse(countNotReached, errno)
}

// connectTo connects a socket, of IPv6 where six.
func connectTo(socket int, to netip.AddrPort, six bool) unix.Errno {
	errno, _ := rawConnect(socket, rawAddress(to, six)).(unix.Errno)
	return errno
}

// counted is what a switched socket of a client is counted as.
func (r *record) counted() count {
	if r.outside {
		return countOutside
	}
	return countConnected
}

const tcpSynSent = 2 // TCP_SYN_SENT, of a socket that is about to be connected

// progress is what connect says of a switched socket that is still being
// connected, or has failed to be; 0 where it is connected.
func (r *record) progress(socket int) unix.Errno {
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	if !r.outside || err != nil || flags&unix.O_NONBLOCK == 0 {
		return 0
	}
	switch option(socket, unix.IPPROTO_TCP, unix.TCP_INFO) & 0xff {
	case tcpSynSent, tcpClose:
		return unix.EINPROGRESS
	}
	return 0
}

// sayMore answers a connect that asks what has become of an earlier one, once with
// its result as the kernel does. A socket that failed is of no more use: by its
// own the kernel could be told to connect anywhere.
func (s *Switch) sayMore(t *trap, known *record, socket int) {
	errno := unix.Errno(0)
	switch option(socket, unix.IPPROTO_TCP, unix.TCP_INFO) & 0xff {
	case tcpSynSent:
		t.answer(0, unix.EALREADY)
		return
	case tcpClose:
		errno = unix.ECONNABORTED
		if pending := option(socket, unix.SOL_SOCKET, unix.SO_ERROR); pending > 0 {
			errno = unix.Errno(pending)
		}
	}
	s.mu.Lock()
	known.pending = false
	s.mu.Unlock()
	t.answer(0, errno)
}
