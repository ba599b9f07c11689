package fastpath

import (
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// parked is a connection that waits until the pod accepts it. Without a bell
// (0) it waits for one.
type parked struct {
	record *record
	pod    *pod
	ends   ends
	// plain: a connection of the overlay that could not be delivered before.
	plain bool
	fd    int
	bell  int
	key   bellKey
	since time.Time
}

// bellKey identifies the bell of an accepted connection. It includes the namespace,
// because a pod with capabilities can give itself any address.
type bellKey struct {
	network     uint64
	bell, local netip.AddrPort
}

// answerer answers the other node. The zero value sends nothing.
type answerer struct {
	key   []byte
	asked *[preambleLen]byte
}

func (a answerer) encode(v verdict) (b [answerLen]byte) {
	if a.asked == nil {
		return b
	}
	return encodeAnswer(v, a.key, a.asked)
}

func (a answerer) send(fd int, v verdict) bool {
	if a.asked == nil {
		return true
	}
	b := a.encode(v)
	n, err := unix.Write(fd, b[:])
	return err == nil && n == len(b)
}

// refuse ends a connection that no pod will receive. If it was promised, it is reset.
// Otherwise the answer must arrive, which a reset could overtake.
func (a answerer) refuse(fd int, v verdict) {
	if a.asked == nil {
		sock.Reset(fd)
		return
	}
	a.send(fd, v)
	unix.Close(fd)
}

func (s *Switch) bellKey(network uint64, bell, local netip.AddrPort) bellKey {
	return bellKey{s.checks.namespace(network), bell, local}
}

// ring connects a bell to the pod's listener and parks a connection there. It answers the
// other node before the pod can accept the connection.
func (s *Switch) ring(p *pod, fd int, e ends, plain bool, answer answerer) {
	overlay := func(why count) {
		s.counters.add(why)
		answer.refuse(fd, verdictOverlay)
	}
	r := s.state.take(kindParked)
	if r == nil {
		overlay(countFull)
		return
	}
	promised := answer.asked == nil
	r.local, r.peer, r.plain, r.again = packEnd(e.local), packEnd(e.peer), plain, promised
	bell, err := s.takeBell(p, e.ipv6())
	if err != nil && !promised {
		s.state.put(r)
		overlay(countNoPod)
		return
	}
	p.parked.Add(1)
	if err != nil {
		r.fd = int32(fd)
		s.park(&parked{record: r, pod: p, ends: e, plain: plain, fd: fd})
		return
	}
	if !promised {
		r.stage = stageRinging
	}
	r.fd, r.bell = int32(fd), int32(bell)
	p.ringing.Lock()
	defer p.ringing.Unlock()
	giveUp := func() {
		p.parked.Add(-1)
		s.state.put(r)
		p.giveBell(bell, e.ipv6())
	}
	address := sock.Raw(e.local, e.ipv6())
	errno := sock.Connect(bell, address)
	if errno == unix.EINPROGRESS {
		// The handshake is over when the call returns, or the listener's queue
		// is full; then the client waits as it would for any such server.
		errno = sock.Connect(bell, address)
	}
	if errno == unix.EALREADY && promised {
		errno = 0 // it waits for a place in the queue
	}
	switch errno {
	case 0:
	case unix.ECONNREFUSED:
		giveUp()
		s.counters.add(countNoListener)
		answer.refuse(fd, verdictRefused)
		return
	default:
		giveUp()
		overlay(countFull)
		return
	}
	if !promised && !e.ipv6() && p.acceptsIPv4(e.local.Port()) {
		sock.ToIPv4(fd) // while it surely is established
	}
	// A successor checks whether the answer was sent.
	r.answer = answer.encode(verdictConnected)
	r.stage = stageBegun
	if !answer.send(fd, verdictConnected) {
		giveUp()
		unix.Close(fd)
		return
	}
	s.park(&parked{record: r, pod: p, ends: e, plain: plain, fd: fd, bell: bell})
}

func (s *Switch) park(p *parked) {
	p.since = time.Now()
	from := netip.AddrPortFrom(netip.Addr{}, uint16(p.fd)) // which nobody accepts
	if p.bell > 0 {
		from, _ = sock.Local(p.bell)
	}
	p.key = s.bellKey(p.pod.network.Load(), from, p.ends.local)
	s.mu.Lock()
	s.parked[p.key] = p
	s.mu.Unlock()
	s.sweepSoon()
}

// takeRung returns the parked connection of an accepted bell, or nil.
func (s *Switch) takeRung(p *pod, accepted int) *parked {
	if !s.checks.mayRing(p) {
		return nil
	}
	bell, ok1 := sock.Peer(accepted)
	local, ok2 := sock.Local(accepted)
	network, err := sock.NetworkCookie(accepted)
	if !ok1 || !ok2 || err != nil {
		return nil
	}
	p.ringing.Lock() // until the bell's port is known
	defer p.ringing.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	key := s.bellKey(network, bell, local)
	found := s.parked[key]
	delete(s.parked, key)
	return found
}

// removeParked removes the parked connections that match, and passes them to f. It
// returns how many there were.
func (s *Switch) removeParked(which func(*parked) bool, f func(*parked)) (left int) {
	var out []*parked
	s.mu.Lock()
	for key, p := range s.parked {
		if which(p) {
			out = append(out, p)
			delete(s.parked, key)
		}
	}
	left = len(s.parked)
	s.mu.Unlock()
	for _, p := range out {
		s.state.put(p.record)
		p.pod.parked.Add(-1)
		p.pod.giveBell(p.bell, p.ends.ipv6())
		f(p)
	}
	return left + len(out)
}

// ringAgain parks a connection again after its listener was closed, or the call that
// accepted it was interrupted.
func (s *Switch) ringAgain(p *pod, fd int, e ends, plain bool) {
	s.ring(p, fd, e, plain, answerer{})
}

// unheard reports whether the bell was closed before the pod accepted it.
func (p *parked) unheard(now time.Time) bool {
	if now.Sub(p.since) < sweepEvery {
		return false
	}
	return p.bell <= 0 || sock.Polled(p.bell, unix.POLLIN|unix.POLLRDHUP) != 0
}
