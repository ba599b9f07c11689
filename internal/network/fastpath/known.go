package fastpath

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// minKnown is the number of switched sockets below which closed ones are kept.
const minKnown = 1024

// forgetEvery is the least time between two calls of forgetSoon that take effect.
const forgetEvery = 5 * time.Second

// ends holds the addresses of a connection as the pod sees them, both of one family.
type ends struct{ local, peer netip.AddrPort }

func (e ends) ipv6() bool { return e.local.Addr().Is6() }

// sockets holds the records of switched sockets, and of sockets that are connected to a
// pod of a Service.
type sockets struct {
	*shared
	pods  *pods
	sweep *alarm

	diagLock sync.Mutex // of diag
	diag     *linux.SocketDiag

	mu    sync.Mutex
	known map[uint64]*record // by cookie
	// forgetAt is the size of known above which the records of closed sockets are removed.
	forgetAt int
	forget   bool // remove them at the next sweep
	forgotAt time.Time
}

func newSockets(s *shared, p *pods, diag *linux.SocketDiag, sweep *alarm) *sockets {
	return &sockets{shared: s, pods: p, sweep: sweep, diag: diag, known: map[uint64]*record{}, forgetAt: minKnown}
}

// find returns the record of a cookie, or nil.
func (s *sockets) find(cookie uint64) *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[cookie]
}

// register records the addresses of a connection in the pod that will receive it, and its
// target. If parked is not nil, the new record replaces it in the pod's share.
func (s *sockets) register(fd int, e ends, target netip.AddrPort, ipv6, outside bool, parked *record) (*record, error) {
	local, ok1 := sock.Local(fd)
	peer, ok2 := sock.Peer(fd)
	if outside {
		peer, ok2 = target, true // it may not be connected yet
	}
	if !ok1 || !ok2 {
		return nil, fmt.Errorf("read the addresses of a connection: %w", unix.ENOTCONN)
	}
	return s.add(fd, record{
		kind: kindSwitched, ipv6: ipv6, outside: outside, local: packEnd(e.local), peer: packEnd(e.peer), target: packEnd(target),
		hostLocal: packEnd(local), hostPeer: packEnd(peer),
	}, parked)
}

// registerSteered records that a pod's own socket is connected to target, for the Service
// asked.
func (s *sockets) registerSteered(p *pod, socket int, asked, target netip.AddrPort, ipv6 bool) error {
	local, _ := sock.Local(socket)
	_, err := s.add(socket, record{
		kind: kindSteered, ipv6: ipv6, local: packEnd(netip.AddrPortFrom(p.addressFor(target.Addr()), local.Port())), peer: packEnd(asked),
		target: packEnd(target), hostLocal: packEnd(local), hostPeer: packEnd(target),
	}, nil)
	return err
}

func (s *sockets) add(socket int, about record, parked *record) (r *record, err error) {
	if about.cookie, err = sock.Cookie(socket); err != nil {
		return nil, fmt.Errorf("identify a connection: %w", err)
	}
	if parked != nil {
		r = s.state.takeFrom(about.kind, parked)
	} else {
		r = s.state.take(about.kind, about.local.addrPort().Addr())
	}
	if r == nil {
		s.forgetSoon()
		return nil, errStateFull
	}
	*r = about
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.put(s.known[about.cookie]) // of a socket that is connected again
	s.known[about.cookie] = r
	if len(s.known) > s.forgetAt {
		s.forgetAt = numRecords // until forgetClosed has run
		s.forget = true
		s.sweep.after(sweepEvery)
	}
	return r, nil
}

// forgetSoon makes the next sweep remove the records of closed sockets. It has an effect
// only once in forgetEvery, because the sweep looks up each socket.
func (s *sockets) forgetSoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.forgotAt) > forgetEvery {
		s.forgotAt, s.forget = now, true
		s.sweep.after(sweepEvery)
	}
}

func (s *sockets) remove(r *record) {
	s.mu.Lock()
	delete(s.known, r.cookie)
	s.mu.Unlock()
	s.state.put(r)
}

// adopt takes the records of a predecessor.
func (s *sockets) adopt(records []*record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range records {
		if r.kind == kindSwitched || r.kind == kindSteered {
			s.known[r.cookie] = r
		}
	}
	s.forgetAt = max(minKnown, 2*len(s.known))
}

// switchedRecords returns copies of the records of switched sockets.
func (s *sockets) switchedRecords() (all []record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.known {
		if r.kind == kindSwitched {
			all = append(all, *r)
		}
	}
	return all
}

// podEnded has the records of closed sockets removed soon, if there are many.
func (s *sockets) podEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) > minKnown {
		s.forget = true
		s.sweep.after(sweepEvery)
	}
}

// forgetClosed removes the records of closed sockets, if that is due. The kernel does not
// notify the Switch when a pod closes one.
func (s *sockets) forgetClosed() {
	s.mu.Lock()
	due := s.forget
	s.forget = false
	var all []*record
	if due {
		for _, r := range s.known {
			all = append(all, r)
		}
	}
	s.mu.Unlock()
	if !due {
		return
	}
	for _, r := range all {
		inode, err := s.inode(r)
		if err != nil {
			s.log.Warn("closed connections keep their records in the fast path", "err", err)
			break
		}
		if inode == 0 {
			s.remove(r)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetAt = 2*len(s.known) + minKnown
}

// inode returns the inode of a known socket, or 0 if no process has it open.
func (s *sockets) inode(r *record) (uint32, error) {
	if r.kind == kindSteered {
		p := s.pods.at(r.local.addrPort().Addr())
		if p == nil {
			return 0, nil
		}
		return p.inode(s.inside, r)
	}
	s.diagLock.Lock()
	defer s.diagLock.Unlock()
	return s.diag.Inode(r.hostLocal.addrPort(), r.hostPeer.addrPort(), r.cookie)
}
