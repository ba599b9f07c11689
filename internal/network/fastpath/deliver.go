package fastpath

import (
	"errors"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// deliver adds a connection to the caller's descriptors, and then answers. If the caller is
// interrupted or the Switch dies in between, the repeated call finds the connection among
// the caller's descriptors.
func (c *incoming) deliver(t *trap, listener int, flags int) {
	ipv6 := sock.Domain(listener) == unix.AF_INET6
	if !c.plain {
		if !ipv6 {
			sock.ToIPv4(c.fd)
		}
		c.pod.defaults.Load().CopyChanged(listener, c.fd, ipv6)
		_, _ = unix.FcntlInt(uintptr(c.fd), unix.F_SETFL, flags&unix.SOCK_NONBLOCK)
	}
	if errno := t.writeAddress(c.ends.peer, ipv6, t.call().Args[1], t.call().Args[2]); errno != 0 {
		c.keep()
		t.answer(0, errno)
		return
	}
	t.record.note(stageDelivering, c.fd)
	number, given := -1, false
	if c.again {
		number, given = t.holds(c.fd)
	}
	var err error
	if !given {
		number, err = linux.GiveDescriptor(t.from.fd, t.call().ID, c.fd, flags&unix.SOCK_CLOEXEC != 0)
	}
	t.release()
	switch {
	case err == nil && linux.AnswerNotification(t.from.fd, t.call().ID, int64(number), 0) == nil:
		t.done()
		c.close()
		if c.plain {
			c.in.counters.add(countLocal)
		} else {
			c.in.counters.add(countAccepted)
		}
	case err == nil || !t.waits():
		c.keep()
		t.cancelled()
	default:
		c.keep()
		errno := unix.ENOBUFS // never 0, which would answer descriptor 0
		errors.As(err, &errno)
		t.answer(0, errno)
	}
}

// keep parks a connection that its caller did not receive, so that any waiting program is
// notified.
func (c *incoming) keep() {
	if c.plain {
		var ok bool
		if c.ends.local, ok = sock.Local(c.fd); !ok {
			c.reset()
			return
		}
	} else {
		c.in.sockets.remove(c.known)
		c.known = nil
	}
	c.ring()
}
