package fastpath

import (
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// resumeAll continues the work of a predecessor.
func (s *Switch) resumeAll() {
	for _, fd := range s.orphans.deliveries {
		s.expectDelivery(fd)
	}
	for _, fd := range s.orphans.connections {
		local, ok1 := sock.Local(fd)
		peer, ok2 := sock.Peer(fd)
		p := s.pods.ofSocket(fd)
		if !ok1 || !ok2 || p == nil || s.inbound.rings(fd) {
			sock.Reset(fd) // the sweep rings again for the connection of a bell
			continue
		}
		c := &incoming{in: s.inbound, fd: fd, pod: p, ends: ends{local, peer}, plain: true}
		c.ring()
	}
	for _, t := range s.resumed {
		done := t.exclude()
		s.resume(t)
		done()
	}
	s.orphans, s.resumed = orphans{}, nil
}

// resume continues a call of a predecessor at its recorded stage.
func (s *Switch) resume(t *trap) {
	stage, connection, old := t.record.stage, int(t.record.bell), int(t.record.old)
	t.record.old = 0
	if !t.waits() {
		// It was answered or interrupted. A delivered connection belongs to the caller.
		t.cancelled()
		sock.CloseAll(connection, old)
		return
	}
	switch stage {
	case stageAsking, stageReplacing:
		if connection > 0 {
			s.outbound.resume(t, connection, old)
			return
		}
	case stageAccepted, stageDelivering:
		if connection > 0 && s.listeners.resume(t, connection) {
			return
		}
	case stageSteering:
		socket, ok := t.fetch(t.argument(0))
		if !ok {
			return
		}
		_ = unix.SetNonblock(socket, false)
		t.release()
	}
	t.record.note(stageBegun, 0)
	sock.CloseAll(connection, old)
	s.handle(t)
}

// resume continues a connect whose preamble was sent. The connection may already
// have replaced the old socket.
func (o *outbound) resume(t *trap, connection, old int) {
	socket, ok := t.fetch(t.argument(0))
	if !ok {
		sock.CloseAll(connection, old)
		return
	}
	if old > 0 {
		cookie, err := sock.Cookie(socket)
		known := o.sockets.find(t.record.cookie)
		if known != nil && err == nil && cookie == known.cookie {
			o.finishReplacing(t, connection, old)
			unix.Close(old) // or epoll would still report it
			o.counters.add(known.counted())
			o.sockets.report(t, known, known.progress(connection))
			unix.Close(connection)
			return
		}
		unix.Close(old)
		if known != nil {
			o.sockets.remove(known)
		}
	}
	address, _ := t.readAddress(t.call().Args[1], t.argument(2))
	if o.switched(socket) { // another thread has replaced the socket
		unix.Close(connection)
		o.sockets.connectAgain(t, socket, address)
		return
	}
	d, why := o.lookUp(t, socket, address)
	if why == 0 {
		if !d.outside {
			d.target = targetOf(&t.record.asked) // as it was chosen
		}
		var c *connecting
		if c, why = o.plan(t, socket, d); c != nil {
			c.resume(connection)
			return
		}
	}
	unix.Close(connection)
	o.leave(t, socket, d, why)
}

// finishReplacing adds the connection to the caller's epoll instances. They still have the
// old socket, because this process keeps it open.
func (o *outbound) finishReplacing(t *trap, connection, old int) {
	number := t.argument(0)
	descriptors, err := listDescriptors(t.tid(), maxDescriptors)
	if err != nil {
		return
	}
	c := connecting{o: o, t: t, fd: connection}
	for _, other := range descriptors {
		if linux.InEpoll(t.tid(), other, number, os.Getpid(), old) {
			c.uses.epolls = append(c.uses.epolls, other)
		}
	}
	c.watchAgain(c.watches(number))
}

// resume delivers an accepted connection and reports whether the call is finished. It
// resets a connection that cannot be delivered. It also resets a bell, because the sweep
// will ring again.
func (l *listeners) resume(t *trap, connection int) bool {
	if l.inbound.rings(connection) {
		t.forget(connection)
		return false
	}
	listener, ok := t.fetch(t.argument(0))
	if !ok {
		sock.Reset(connection) // the call has been answered
		return true
	}
	if t.record.stage == stageDelivering {
		if number, given := t.holds(connection); given {
			unix.Close(connection)
			t.answer(int64(number), 0)
			return true
		}
	}
	peer, known := sock.Peer(connection)
	if !known {
		t.forget(connection)
		return false
	}
	c := &incoming{in: l.inbound, fd: connection, state: inDelivering, pod: t.from.pod, ends: ends{peer: peer}, plain: true}
	if l.switched(connection) {
		id, _ := sock.Cookie(connection)
		if c.known = l.inbound.sockets.find(id); c.known == nil {
			t.forget(connection)
			return false
		}
		c.plain, c.ends = false, ends{c.known.local.addrPort(), c.known.peer.addrPort()}
	}
	c.deliver(t, listener, t.acceptFlags())
	return true
}
