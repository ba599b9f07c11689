package fastpath

import (
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// Addresses outside the cluster are reached by an ordinary socket of the host,
// instead of the user-mode stack (package egress). A blocking caller receives the
// socket once it is connected, and a non-blocking caller at once. The kernel then
// reports the progress as for any socket.

// reach begins to connect to the outside.
func (c *connecting) reach() {
	t := c.t
	c.state = connOutside
	fd, err := unix.Socket(sock.Domain(t.socket), unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		c.fallBack(countNoPeer)
		return
	}
	c.fd = fd
	if c.ipv6 {
		// Set this whatever the host's default is: the target may be an IPv4
		// address.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	// Sizes of buffers have an effect only before connect. Options that may change
	// meanwhile are copied again by install.
	t.from.pod.defaults.Load().CopyChanged(t.socket, fd, c.ipv6)
	_ = unix.SetNonblock(fd, true)
	t.record.note(stageAsking, fd)
	c.reaching(sock.ConnectTo(fd, c.target, c.ipv6))
}

// reachAgain continues for a predecessor, which may not have begun to connect.
func (c *connecting) reachAgain() {
	c.state = connOutside
	errno := sock.ConnectTo(c.fd, c.target, c.ipv6)
	switch errno {
	case unix.EALREADY:
		errno = unix.EINPROGRESS
	case unix.EISCONN:
		errno = 0
	}
	c.reaching(errno)
}

// reaching acts on the result of an attempt to connect.
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

// reached reads the result of the attempt once the socket is ready.
func (c *connecting) reached() {
	errno := sock.Option(c.fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if errno == 0 && sock.State(c.fd) == sock.Closed {
		errno = int(unix.ECONNABORTED) // a predecessor has read the error
	}
	if errno != 0 {
		c.fail(unix.Errno(errno))
		return
	}
	c.install(0)
}

// fail returns the error of the attempt to the caller. Where the host lacks ports or
// memory, the pod's own network may still have them: the call is left to the overlay.
func (c *connecting) fail(errno unix.Errno) {
	switch errno {
	case unix.EADDRNOTAVAIL, unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM:
		c.fallBack(countNoPeer)
		return
	}
	c.end()
	c.t.refuse(countNotReached, errno)
}
