package fastpath

import (
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// ends holds the addresses of a connection as the pod sees them, both of one family.
type ends struct{ local, peer netip.AddrPort }

func (e ends) ipv6() bool { return e.local.Addr().Is6() }

// register records the addresses of a connection in the pod that will receive it, and its
// target.
func (s *Switch) register(fd int, e ends, target netip.AddrPort, ipv6, outside bool) (*record, error) {
	local, ok1 := sock.Local(fd)
	peer, ok2 := sock.Peer(fd)
	if outside {
		peer, ok2 = target, true // it may not be connected yet
	}
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("name a connection: %w", unix.ENOTCONN)
	}
	return s.addKnown(fd, record{
		kind: kindSwitched, ipv6: ipv6, outside: outside, local: packEnd(e.local), peer: packEnd(e.peer), target: packEnd(target),
		hostLocal: packEnd(local), hostPeer: packEnd(peer),
	})
}

// registerSteered records the Service behind the connection of a pod's own socket.
func (s *Switch) registerSteered(p *pod, socket int, d destination) error {
	local, _ := sock.Local(socket)
	_, err := s.addKnown(socket, record{
		kind: kindSteered, ipv6: d.ipv6, local: packEnd(netip.AddrPortFrom(p.addressFor(d.target.Addr()), local.Port())), peer: packEnd(d.asked),
		target: packEnd(d.target), hostLocal: packEnd(local), hostPeer: packEnd(d.target),
	})
	return err
}

func (s *Switch) addKnown(socket int, about record) (r *record, err error) {
	if about.cookie, err = sock.Cookie(socket); err != nil {
		return nil, fmt.Errorf("identify a connection: %w", err)
	}
	if r = s.state.take(about.kind); r == nil {
		return nil, errStateFull
	}
	*r = about
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.put(s.known[about.cookie]) // of a socket that is connected again
	s.known[about.cookie] = r
	if len(s.known) > s.forgetAt {
		s.forgetAt = numRecords // until it has been done
		s.forget = true
		s.sweepLocked()
	}
	return r, nil
}

func (s *Switch) unregister(r *record) {
	s.mu.Lock()
	delete(s.known, r.cookie)
	s.mu.Unlock()
	s.state.put(r)
}

// name answers getsockname and getpeername on a switched socket with the addresses that
// the pod expects.
func (s *Switch) name(t *trap) {
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
	var r record // kindFree where there is none
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
func (s *Switch) listen(t *trap) {
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
	if err := t.from.pod.findNamespace(t); err != nil {
		s.config.Log.Debug("connections to a pod stay on the overlay", "pod", t.from.pod.address, "err", err)
	}
	t.pass()
}
