package fastpath

import (
	"sync"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// listeners answers accept on the listeners of pods. The kernel must not perform it,
// because the program would receive a bell.
type listeners struct {
	*shared
	inbound *inbound
	waiting *waitingCalls

	// accepting has locks for listeners, chosen by cookie.
	accepting [64]sync.Mutex
}

func newListeners(in *inbound) *listeners {
	l := &listeners{shared: in.shared, inbound: in}
	l.waiting = newWaitingCalls(l.reactor, l.accept)
	return l
}

// accept answers accept and accept4.
func (l *listeners) accept(t *trap) {
	listener, ok := t.fetch(t.argument(0))
	if !ok {
		return
	}
	switch {
	case !t.waits():
		t.cancelled()
		return
	case l.switched(listener):
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
	c, errno := l.acceptOne(t, listener, cookie, flags)
	if errno == 0 {
		c.deliver(t, listener, flags)
		return
	}
	status, _ := unix.FcntlInt(uintptr(listener), unix.F_GETFL, 0)
	if errno != unix.EAGAIN || status&unix.O_NONBLOCK != 0 {
		t.answer(0, errno)
		return
	}
	l.waiting.add(t, listener, cookie)
}

// acceptOne accepts a parked connection or a connection of the overlay. It returns EAGAIN
// if there is none.
func (l *listeners) acceptOne(t *trap, listener int, cookie uint64, flags int) (*incoming, unix.Errno) {
	lock := &l.accepting[cookie%uint64(len(l.accepting))]
	lock.Lock()
	defer lock.Unlock()
	return l.acceptNext(t, listener, flags)
}

// acceptNext accepts the next connection of a listener. It skips withdrawn bells.
func (l *listeners) acceptNext(t *trap, listener, flags int) (*incoming, unix.Errno) {
	// A blocking listener must not block here. The lock keeps other calls from accepting
	// the connection in between.
	if sock.Polled(listener, unix.POLLIN) == 0 {
		return nil, unix.EAGAIN
	}
	fd, peer, errno := sock.Accept(listener, flags&unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if errno != 0 {
		return nil, errno
	}
	t.record.note(stageAccepted, fd)
	if c := l.inbound.takeRung(t.from.pod, fd); c != nil {
		var err error
		if !c.plain {
			c.known, err = l.inbound.sockets.register(c.fd, c.ends, c.ends.local, sock.Domain(listener) == unix.AF_INET6, false, c.record)
		}
		// Record the connection before the parked record is free.
		t.record.note(stageDelivering, c.fd)
		c.takeBack()
		unix.Close(fd)
		if err != nil {
			c.state = inDone
			t.forget(c.fd)
			return nil, unix.ECONNABORTED
		}
		if !c.plain && !l.inbound.control.permits(c.ends.peer.Addr(), c.ends.local, false) {
			l.counters.add(countPolicy)
			l.inbound.sockets.remove(c.known)
			c.state = inDone
			t.forget(c.fd)
			return l.acceptNext(t, listener, flags)
		}
		return c, 0
	}
	if _, connected := sock.Peer(fd); !connected && t.from.pod.has(peer.Addr()) {
		// A withdrawn bell, or a program of the pod that has given up.
		t.forget(fd)
		return l.acceptNext(t, listener, flags)
	}
	return &incoming{in: l.inbound, fd: fd, state: inDelivering, pod: t.from.pod, ends: ends{peer: peer}, plain: true}, 0
}
