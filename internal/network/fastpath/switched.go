package fastpath

import (
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// These calls are answered because of sockets that are already switched: a pod must not
// see the host's addresses, or use a socket of the host as it likes.

// name answers getsockname and getpeername on a switched socket with the addresses that
// the pod expects.
func (s *sockets) name(t *trap) {
	s.mu.Lock()
	none := len(s.known) == 0
	s.mu.Unlock()
	if none {
		t.pass()
		return
	}
	socket, ok := t.fetch(t.argument(0))
	if !ok {
		return
	}
	if !t.waits() {
		t.cancelled()
		return
	}
	cookie, err := sock.Cookie(socket)
	var r record // of kindFree if the socket is not known
	s.mu.Lock()
	if known := s.known[cookie]; known != nil && err == nil {
		r = *known
	}
	s.mu.Unlock()
	peer, connected := sock.Peer(socket)
	ofPeer := t.call().Call == unix.SYS_GETPEERNAME
	switched := s.switched(socket)
	switch {
	case !switched && (r.kind != kindSteered || !ofPeer || !connected || peer != r.target.addrPort()):
		t.pass()
	case switched && (r.kind != kindSwitched || ofPeer && !connected):
		t.answer(0, unix.ENOTCONN) // not the host's addresses
	case ofPeer:
		t.answer(0, t.writeAddress(r.peer.addrPort(), r.ipv6, t.call().Args[1], t.call().Args[2]))
	default:
		t.answer(0, t.writeAddress(r.local.addrPort(), r.ipv6, t.call().Args[1], t.call().Args[2]))
	}
}

// listen refuses to turn a switched socket into a listener of the host.
func (s *sockets) listen(t *trap) {
	socket, ok := t.fetch(t.argument(0))
	if !ok {
		return
	}
	switch {
	case !t.waits():
		t.cancelled()
		return
	case s.switched(socket) && s.checks.refuses(unix.SYS_LISTEN):
		t.refuse(countListen, unix.EINVAL)
		return
	}
	t.from.pod.noteListener(socket)
	// Bells can reach the pod's servers from now on.
	if err := s.pods.findNamespace(t); err != nil {
		s.log.Debug("connections to a pod stay on the overlay", "pod", t.from.pod.address, "err", err)
	}
	t.pass()
}

// connectAgain refuses calls that would connect a socket of the host's network to any
// address.
func (s *sockets) connectAgain(t *trap, socket int, address []byte) {
	if sock.Family(address) == unix.AF_UNSPEC {
		if !s.checks.refuses(callDisconnect) {
			t.pass()
			return
		}
		t.refuse(countDisconnect, unix.EOPNOTSUPP)
		return
	}
	if !s.checks.refuses(unix.SYS_CONNECT) {
		t.pass()
		return
	}
	cookie, err := sock.Cookie(socket)
	asked, _, ok := sock.Parse(address)
	s.mu.Lock()
	known := s.known[cookie]
	unsaid := err == nil && ok && known != nil && known.unreported && known.peer.addrPort() == asked
	// A switched socket without a record was connected to the outside, and has failed.
	outside, pending := known == nil || known.outside, known != nil && known.pending
	s.mu.Unlock()
	if unsaid {
		// A signal interrupted the call that connected the socket, and the kernel has
		// restarted the call.
		s.report(t, known, known.progress(socket))
		return
	}
	if outside && err == nil {
		s.reportOutcome(t, socket, cookie, pending)
		return
	}
	t.refuse(countReconnect, unix.EISCONN)
}

// report answers a connect, and records whether the caller received it. It holds the
// lock, because the call may already have been restarted.
func (s *sockets) report(t *trap, known *record, errno unix.Errno) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known.pending = errno == unix.EINPROGRESS
	known.unreported = !t.answer(0, errno)
}

// reportOutcome answers another connect on a switched socket to the outside. Like
// the kernel, it returns the result of the first one once. A socket that failed stays
// unusable: the kernel would connect it to any address that the host can reach.
func (s *sockets) reportOutcome(t *trap, socket int, cookie uint64, pending bool) {
	errno := unix.EISCONN
	switch sock.State(socket) {
	case sock.SynSent:
		t.answer(0, unix.EALREADY)
		return
	case sock.Closed:
		errno = unix.ECONNABORTED
		if why := sock.Option(socket, unix.SOL_SOCKET, unix.SO_ERROR); why > 0 {
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

// counted returns the counter for a switched socket of a client.
func (r *record) counted() count {
	if r.outside {
		return countOutside
	}
	return countConnected
}

// progress returns the answer to the connect that switched a socket. It is EINPROGRESS
// while the socket connects. If it has failed, the answer is EINPROGRESS, too, and the
// program reads the error later. Otherwise it is 0. A blocking socket without SO_SNDTIMEO
// is switched only once it is connected, so it cannot have failed.
func (r *record) progress(socket int) unix.Errno {
	if !r.outside {
		return 0
	}
	flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0)
	waits := (err != nil || flags&unix.O_NONBLOCK == 0) && sock.SendTimeout(socket) == sock.MaxConnect
	if at := sock.State(socket); at == sock.SynSent || at == sock.Closed && !waits {
		return unix.EINPROGRESS
	}
	return 0
}
