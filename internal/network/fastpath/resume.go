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
		p := s.podOf(fd)
		if !ok1 || !ok2 || p == nil || s.rings(fd) {
			sock.Reset(fd) // a bell is rung again
			continue
		}
		s.ringAgain(p, fd, ends{local, peer}, true)
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
			s.resumeConnect(t, connection, old)
			return
		}
	case stageAccepted, stageDelivering:
		if connection > 0 && s.resumeAccept(t, connection) {
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

// resumeConnect continues a connect whose preamble was sent. The connection may already
// have replaced the old socket.
func (s *Switch) resumeConnect(t *trap, connection, old int) {
	socket, ok := t.fetch(t.argument(0))
	if !ok {
		sock.CloseAll(connection, old)
		return
	}
	if old > 0 {
		cookie, err := sock.Cookie(socket)
		s.mu.Lock()
		known := s.known[t.record.cookie]
		s.mu.Unlock()
		if known != nil && err == nil && cookie == known.cookie {
			s.finishReplacing(t, connection, old)
			unix.Close(old) // or epoll would still report it
			s.counters.add(known.counted())
			s.report(t, known, known.progress(connection))
			unix.Close(connection)
			return
		}
		unix.Close(old)
		if known != nil {
			s.unregister(known)
		}
	}
	address, _ := t.readAddress(t.call().Args[1], t.argument(2))
	if s.switched(socket) { // another one by now
		unix.Close(connection)
		s.connectSwitched(t, socket, address)
		return
	}
	d, why := s.lookUp(t, socket, address)
	if why == 0 {
		if !d.outside {
			d.target = targetOf(&t.record.asked) // as it was chosen
		}
		var c *connecting
		if c, why = s.plan(t, socket, d); c != nil {
			c.resume(connection)
			return
		}
	}
	unix.Close(connection)
	s.leave(t, socket, d, why)
}

// finishReplacing adds the connection to the caller's epoll instances. They still have the
// old socket, because this process keeps it open.
func (s *Switch) finishReplacing(t *trap, connection, old int) {
	number := t.argument(0)
	descriptors, err := listDescriptors(t.tid(), maxDescriptors)
	if err != nil {
		return
	}
	c := connecting{t: t, fd: connection}
	for _, other := range descriptors {
		if linux.InEpoll(t.tid(), other, number, os.Getpid(), old) {
			c.uses.epolls = append(c.uses.epolls, other)
		}
	}
	c.watchAgain(c.watches(number))
}

// resumeAccept delivers an accepted connection, unless it is a bell, which rings again.
func (s *Switch) resumeAccept(t *trap, connection int) bool {
	if s.rings(connection) {
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
	a := accepted{fd: connection, peer: peer}
	if s.switched(connection) {
		id, _ := sock.Cookie(connection)
		s.mu.Lock()
		a.known = s.known[id]
		s.mu.Unlock()
		if a.known == nil {
			t.forget(connection)
			return false
		}
		a.switched, a.peer = true, a.known.peer.addrPort()
	}
	s.deliver(t, listener, a, t.acceptFlags())
	return true
}

// rings reports whether an accepted connection is the bell of a parked one.
func (s *Switch) rings(connection int) bool {
	bell, ok1 := sock.Peer(connection)
	local, ok2 := sock.Local(connection)
	network, err := sock.NetworkCookie(connection)
	if !ok1 || !ok2 || err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parked[s.bellKey(network, bell, local)] != nil
}
