package fastpath

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// accepted is a connection for a listener of a pod.
type accepted struct {
	fd       int
	peer     netip.AddrPort
	known    *record // of a switched one
	switched bool
	// again is set if the caller may already have it from an interrupted call.
	again bool
}

// accept answers accept and accept4. The kernel must not perform them, because the program
// would receive a bell.
func (s *Switch) accept(t *trap) {
	listener, ok := t.fetch(t.argument(0))
	if !ok {
		return
	}
	switch {
	case !t.waits():
		t.cancelled()
		return
	case s.switched(listener):
		t.answer(0, unix.EINVAL)
		return
	case !sock.IsInet(listener):
		t.pass()
		return
	case sock.Option(listener, unix.SOL_SOCKET, unix.SO_ACCEPTCONN) != 1:
		t.answer(0, unix.EINVAL)
		return
	}
	flags := t.acceptFlags()
	if flags&^(unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC) != 0 {
		t.answer(0, unix.EINVAL)
		return
	}
	cookie, err := sock.Cookie(listener)
	if err != nil {
		t.answer(0, unix.EINVAL)
		return
	}
	a, errno := s.acceptOne(t, listener, cookie, flags)
	if errno == 0 {
		s.deliver(t, listener, a, flags)
		return
	}
	status, _ := unix.FcntlInt(uintptr(listener), unix.F_GETFL, 0)
	if errno != unix.EAGAIN || status&unix.O_NONBLOCK != 0 {
		t.answer(0, errno)
		return
	}
	s.waitFor(t, listener, cookie)
}

func (t *trap) acceptFlags() int {
	if t.call().Call == unix.SYS_ACCEPT4 {
		return t.argument(3)
	}
	return 0
}

// acceptOne accepts a parked connection, or one of the overlay, if there is any.
func (s *Switch) acceptOne(t *trap, listener int, cookie uint64, flags int) (accepted, unix.Errno) {
	lock := &s.accepting[cookie%uint64(len(s.accepting))]
	lock.Lock()
	defer lock.Unlock()
	return s.acceptNext(t, listener, flags)
}

// acceptNext accepts the next connection of a listener. It skips withdrawn bells.
func (s *Switch) acceptNext(t *trap, listener, flags int) (accepted, unix.Errno) {
	// A blocking listener must not block here. The lock keeps other calls from accepting
	// the connection in between.
	if sock.Polled(listener, unix.POLLIN) == 0 {
		return accepted{}, unix.EAGAIN
	}
	fd, peer, errno := sock.Accept(listener, flags&unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return accepted{}, errno
	}
	t.record.note(stageAccepted, fd)
	if found := s.takeRung(t.from.pod, fd); found != nil {
		a := accepted{fd: found.fd, peer: found.ends.peer, switched: !found.plain, again: found.record.again}
		var err error
		if a.switched {
			a.known, err = s.register(found.fd, found.ends, found.ends.local, sock.Domain(listener) == unix.AF_INET6, false)
		}
		// Record the connection before the parked record is free.
		t.record.note(stageDelivering, found.fd)
		s.state.put(found.record)
		found.pod.parked.Add(-1)
		found.pod.giveBell(found.bell, found.ends.ipv6())
		unix.Close(fd)
		if err != nil {
			t.forget(found.fd)
			return accepted{}, unix.ECONNABORTED
		}
		if a.switched && !s.config.Policy.Permits(found.ends.peer.Addr(), found.ends.local) {
			s.counters.add(countPolicy)
			s.unregister(a.known)
			t.forget(found.fd)
			return s.acceptNext(t, listener, flags)
		}
		return a, 0
	}
	if _, connected := sock.Peer(fd); !connected && t.from.pod.has(peer.Addr()) {
		// A withdrawn bell, or a program of the pod that has given up.
		t.forget(fd)
		return s.acceptNext(t, listener, flags)
	}
	return accepted{fd: fd, peer: peer}, 0
}

// deliver adds a connection to the caller's descriptors, and then answers. If the caller is
// interrupted or the Switch dies in between, the repeated call finds it there.
func (s *Switch) deliver(t *trap, listener int, a accepted, flags int) {
	ipv6 := sock.Domain(listener) == unix.AF_INET6
	if a.switched {
		if !ipv6 {
			sock.ToIPv4(a.fd)
		}
		t.from.pod.defaults.Load().CopyChanged(listener, a.fd, ipv6)
		_, _ = unix.FcntlInt(uintptr(a.fd), unix.F_SETFL, flags&unix.SOCK_NONBLOCK)
	}
	if errno := t.writeAddress(a.peer, ipv6, t.call().Args[1], t.call().Args[2]); errno != 0 {
		s.keepUndelivered(t.from.pod, a)
		t.answer(0, errno)
		return
	}
	t.record.note(stageDelivering, a.fd)
	number, given := -1, false
	if a.again {
		number, given = t.holds(a.fd)
	}
	var err error
	if !given {
		number, err = linux.GiveDescriptor(t.from.fd, t.call().ID, a.fd, flags&unix.SOCK_CLOEXEC != 0)
	}
	t.release()
	switch {
	case err == nil && linux.AnswerNotification(t.from.fd, t.call().ID, int64(number), 0) == nil:
		t.done()
		unix.Close(a.fd)
		if a.switched {
			s.counters.add(countAccepted)
		} else {
			s.counters.add(countLocal)
		}
	case err == nil || !t.waits():
		s.keepUndelivered(t.from.pod, a)
		t.cancelled()
	default:
		s.keepUndelivered(t.from.pod, a)
		errno := unix.ENOBUFS // never 0, which would be a connection
		errors.As(err, &errno)
		t.answer(0, errno)
	}
}

// keepUndelivered parks a connection again after its caller was interrupted, so that any
// waiting program is notified.
func (s *Switch) keepUndelivered(p *pod, a accepted) {
	if a.switched {
		e := ends{a.known.local.addrPort(), a.known.peer.addrPort()}
		s.unregister(a.known)
		s.ringAgain(p, a.fd, e, false)
		return
	}
	local, ok := sock.Local(a.fd)
	if !ok {
		sock.Reset(a.fd)
		return
	}
	s.ringAgain(p, a.fd, ends{local, a.peer}, true)
}
