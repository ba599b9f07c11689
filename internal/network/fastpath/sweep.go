package fastpath

import (
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

const (
	// sweepEvery is the time between checks of waiting calls and parked connections.
	sweepEvery = 50 * time.Millisecond
	// tidyEvery is the time between checks of idle connections.
	tidyEvery = 10 * time.Second
	// minKnown is the number of switched sockets below which closed ones are kept.
	minKnown = 1024
)

func (s *Switch) sweepSoon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked()
}

func (s *Switch) sweepLocked() {
	if s.sweeping || s.closed {
		return
	}
	s.sweeping = true
	s.sweepTimer.Reset(sweepEvery)
}

func (s *Switch) watchConnecting(c *connecting, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !on {
		delete(s.connecting, c)
		return
	}
	s.connecting[c] = struct{}{}
	s.sweepLocked()
}

// sweep ends calls and parked connections that have waited too long.
func (s *Switch) sweep() {
	now := time.Now()
	s.mu.Lock()
	s.sweeping = false
	if s.closed {
		s.mu.Unlock()
		return
	}
	var late []*connecting
	for c := range s.connecting {
		late = append(late, c)
	}
	forget := s.forget
	s.forget = false
	tidy := now.Sub(s.tidied) > tidyEvery
	if tidy {
		s.tidied = now
	}
	s.mu.Unlock()
	for _, c := range late {
		c.checkDeadline(now)
	}
	left := len(late) + s.removeParked(
		func(p *parked) bool { return p.unheard(now) },
		func(p *parked) { s.ringAgain(p.pod, p.fd, p.ends, p.plain) })
	if forget {
		s.forgetClosed()
	}
	if tidy {
		s.tidy(now)
	}
	if left > 0 {
		s.sweepSoon()
	}
}

// tidy closes idle and expired connections, and runs again while there are any.
func (s *Switch) tidy(now time.Time) {
	s.mu.Lock()
	var all []*pendingConn
	for g := range s.pending {
		all = append(all, g)
	}
	s.mu.Unlock()
	for _, g := range all {
		g.expire(now)
	}
	any := len(all) > 0
	for _, p := range s.peers {
		any = p != nil && p.trim() || any
	}
	if any {
		s.tidyTimer.Reset(tidyEvery)
	}
}

// forgetClosed removes the records of closed sockets. The kernel does not notify the Switch
// when a pod closes one.
func (s *Switch) forgetClosed() {
	s.mu.Lock()
	all := make([]*record, 0, len(s.known))
	for _, r := range s.known {
		all = append(all, r)
	}
	s.mu.Unlock()
	for _, r := range all {
		inode, err := s.inode(r)
		if err != nil {
			s.config.Log.Warn("the names of closed connections are not forgotten", "err", err)
			break
		}
		if inode == 0 {
			s.unregister(r)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetAt = 2*len(s.known) + minKnown
}

// inode returns the inode of a known socket, or 0 if no process has it open.
func (s *Switch) inode(r *record) (uint32, error) {
	if r.kind == kindSteered {
		s.mu.Lock()
		p := s.pods[r.local.addrPort().Addr()]
		s.mu.Unlock()
		if p == nil {
			return 0, nil
		}
		return p.inode(s, r)
	}
	s.diagLock.Lock()
	defer s.diagLock.Unlock()
	return s.diag.Inode(r.hostLocal.addrPort(), r.hostPeer.addrPort(), r.cookie)
}

// inode finds a socket in the pod's namespace.
func (p *pod) inode(s *Switch, r *record) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.free) == 0 {
		return 0, nil // the pod is gone
	}
	if p.diag == nil {
		namespace, err := sock.Namespace(p.free[0])
		if err != nil {
			return 0, err
		}
		defer unix.Close(namespace)
		made, err := s.inside.sockets(askDiag, namespace)
		if err != nil {
			return 0, err
		}
		p.diag = linux.NewSocketDiag(made[0])
	}
	return p.diag.Inode(r.hostLocal.addrPort(), r.hostPeer.addrPort(), r.cookie)
}
