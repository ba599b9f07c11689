package fastpath

import (
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// await waits for the next event of the connection.
func (c *connecting) await() {
	var err error
	var event uint32 = unix.EPOLLIN
	if c.state == connOutside {
		event = unix.EPOLLOUT
	}
	if c.token == 0 {
		err = c.o.reactor.add(c.fd, event, c, &c.token)
	} else {
		err = c.o.reactor.again(c.fd, c.token, event)
	}
	if err != nil {
		c.fallBack(countNoPeer)
	}
}

// leaveConnection closes the connection. It clears the record first: a successor
// must not use the number, which the next descriptor will get.
func (c *connecting) leaveConnection() {
	c.t.record.note(stageBegun, 0)
	c.stopReading()
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

// stopReading makes the reactor ignore the connection.
func (c *connecting) stopReading() {
	if c.token != 0 {
		c.o.reactor.forget(c.fd, c.token)
		c.token = 0
	}
}

// leave closes the connection and the duplicate of the caller's socket.
func (c *connecting) leave() {
	c.end()
	c.t.release()
}

// end closes the connection and stops the checks of the sweep.
func (c *connecting) end() {
	c.leaveConnection()
	c.state = connDone
	c.o.unwatch(c)
}

// fallBack leaves the call to the overlay.
func (c *connecting) fallBack(why count) {
	c.end()
	c.o.leave(c.t, c.t.socket, c.destination, why)
}

// install replaces the caller's socket by the connection, and answers the call with errno.
func (c *connecting) install(errno unix.Errno) {
	t, o := c.t, c.o
	c.stopReading() // the next bytes are the pod's
	number := t.argument(0)
	same := linux.SameFile(os.Getpid(), t.socket, t.tid(), number)
	if !t.waits() {
		c.leave()
		t.cancelled()
		return
	}
	if !same { // another thread has closed the descriptor meanwhile
		c.leave()
		t.answer(0, unix.EBADF)
		return
	}
	t.from.pod.defaults.Load().CopyChanged(t.socket, c.fd, c.ipv6)
	known, err := o.sockets.register(c.fd, ends{c.source, c.asked}, c.target, c.ipv6, c.outside, nil)
	if err != nil {
		c.fallBack(countFull)
		return
	}
	// The policy may have changed before Cut could find the connection.
	if !o.control.permits(c.source.Addr(), c.target, c.outside) {
		o.sockets.remove(known)
		c.fallBack(countPolicy)
		return
	}
	about := *known // the record is reused once the caller has closed the socket
	watches := c.watches(number)
	known.unreported = true
	t.record.cookie, t.record.old = known.cookie, int32(t.socket)
	t.record.note(stageReplacing, c.fd)
	if err := linux.ReplaceDescriptor(t.from.fd, t.call().ID, c.fd, number, t.closesOnExec(number)); err != nil {
		o.sockets.remove(known)
		c.leave()
		if t.waits() {
			t.answer(0, unix.ENOBUFS)
		} else {
			t.cancelled()
		}
		return
	}
	c.watchAgain(watches)
	o.counters.add(known.counted())
	c.leave() // epoll would report the old socket as long as it is open
	o.sockets.report(t, known, errno)
	if c.peer != nil {
		c.peer.refill()
		o.learn(c.asked, about)
	}
}

// watches returns the entries of the caller's epoll instances for its socket.
func (c *connecting) watches(number int) map[int]watch {
	if len(c.uses.epolls) == 0 {
		return nil
	}
	found := map[int]watch{}
	for _, epoll := range c.uses.epolls {
		if w, ok := c.t.watchOf(epoll, number); ok {
			found[epoll] = w
		}
	}
	return found
}

// watchAgain adds the entries for the connection to the caller's epoll instances.
func (c *connecting) watchAgain(watches map[int]watch) {
	for epoll, w := range watches {
		if err := c.t.watchAgain(epoll, c.t.argument(0), c.fd, w); err != nil {
			c.o.log.Warn("a program may miss events of a connection", "err", err)
		}
	}
}
