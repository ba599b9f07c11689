package fastpath

import (
	"errors"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// deliver gives a connection to the caller, and answers the call with its descriptor.
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
	number := -1
	if c.again {
		if held, given := t.holds(c.fd); given {
			number = held
		}
	}
	err := t.give(c.fd, number, flags&unix.SOCK_CLOEXEC != 0)
	switch {
	case err == nil:
		t.done()
		c.close()
		if c.plain {
			c.in.counters.add(countLocal)
		} else {
			c.in.counters.add(countAccepted)
		}
	case !t.waits():
		c.keep()
		t.cancelled()
	default:
		c.keep()
		errno := unix.ENOBUFS // never 0, which would answer descriptor 0
		errors.As(err, &errno)
		t.answer(0, errno)
	}
}

// give answers a call with a connection, which the caller has as number already, or
// receives now if number is negative. It first adds the connection to the caller's
// descriptors, and then answers: if the Switch dies in between, the repeated call finds it
// there. If a signal could make the kernel lose the answer, give does both at once. It never
// replaces a descriptor that the caller has already: another thread may have closed it, and
// opened something else under its number.
func (t *trap) give(connection, number int, closeOnExec bool) (err error) {
	t.release()
	if number < 0 && t.s.losesAnswers {
		return linux.AnswerWithDescriptor(t.from.fd, t.call().ID, connection, closeOnExec)
	}
	if number < 0 {
		number, err = linux.GiveDescriptor(t.from.fd, t.call().ID, connection, closeOnExec)
	}
	if err != nil {
		return err
	}
	return linux.AnswerNotification(t.from.fd, t.call().ID, int64(number), 0)
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
