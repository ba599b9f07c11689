package fastpath

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

const (
	// maxPending limits the connections that wait for a preamble. Idle connections of
	// other nodes are among them.
	maxPending = 4096
	// pendingFor limits that wait.
	pendingFor = 2 * time.Minute
	// shortage is the pause after a connection could not be accepted.
	shortage = 100 * time.Millisecond
)

// peerListener accepts connections of other nodes.
type peerListener struct {
	s     *Switch
	fd    int
	token uint64
}

func (d *peerListener) ready(uint32) { d.s.acceptAll(d.fd, d.token, d.s.addPending) }

// acceptAll accepts all connections of a listener, and waits for the next. It pauses when
// descriptors or memory are short, because the reactor would report the connection, which
// stays in the queue, again at once.
func (s *Switch) acceptAll(listener int, token uint64, take func(fd int)) {
	again := func() { _ = s.reactor.again(listener, token, unix.EPOLLIN) }
	for {
		fd, _, errno := sock.Accept(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch errno {
		case 0:
			take(fd)
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EAGAIN:
			again()
			return
		default:
			s.counters.add(countShortage)
			time.AfterFunc(shortage, again)
			return
		}
	}
}

// pendingConn is a connection that has not sent its preamble.
type pendingConn struct {
	s         *Switch
	fd        int
	token     uint64
	challenge challenge
	since     time.Time

	mu   sync.Mutex
	over bool
	b    [preambleLen]byte
	n    int
}

func (s *Switch) addPending(fd int) {
	g := &pendingConn{s: s, fd: fd, since: time.Now()}
	_, _ = rand.Read(g.challenge[:])
	if n, err := unix.Write(fd, g.challenge[:]); err != nil || n != challengeLen {
		unix.Close(fd)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.mu.Lock()
	full := len(s.pending) >= maxPending
	if !full {
		s.pending[g] = struct{}{}
	}
	s.mu.Unlock()
	var err error
	if !full {
		err = s.reactor.add(fd, unix.EPOLLIN, g, &g.token)
	}
	if full || err != nil {
		s.counters.add(countFull)
		g.leave()
		unix.Close(fd)
	}
}

func (g *pendingConn) leave() {
	g.over = true
	g.s.mu.Lock()
	delete(g.s.pending, g)
	g.s.mu.Unlock()
	if g.token != 0 {
		g.s.reactor.forget(g.fd, g.token)
	}
}

func (g *pendingConn) close() {
	g.leave()
	unix.Close(g.fd)
}

func (g *pendingConn) expire(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.over && now.Sub(g.since) > pendingFor {
		g.close()
	}
}

func (g *pendingConn) ready(uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.over {
		return
	}
	n, err := unix.Read(g.fd, g.b[g.n:])
	if err == unix.EAGAIN {
		n = 0
	} else if n == 0 || err != nil {
		g.close() // not needed
		return
	}
	if g.n += n; g.n < len(g.b) {
		if g.s.reactor.again(g.fd, g.token, unix.EPOLLIN) != nil {
			g.close()
		}
		return
	}
	g.s.handlePreamble(g)
}

// handlePreamble acts on the preamble of a connection.
func (s *Switch) handlePreamble(g *pendingConn) {
	p, key, err := decodePreamble(&g.b, g.challenge, s.keyFrom)
	if !s.checks.trusts(err, key) {
		s.counters.add(countForged)
		g.close()
		return
	}
	if err := s.checkPreamble(p); err != nil {
		s.counters.add(countForged)
		s.config.Log.Warn("a node asked for a connection that is not its own", "err", err)
		g.close()
		return
	}
	g.leave()
	answer := answerer{key, &g.b}
	s.mu.Lock()
	to := s.pods[p.target.Addr()]
	s.mu.Unlock()
	why := count(-1)
	switch {
	case to == nil:
		why = countNoPod
	case !s.config.Policy.Permits(p.source.Addr(), p.target):
		why = countPolicy
	}
	if why >= 0 {
		s.counters.add(why)
		answer.refuse(g.fd, verdictOverlay)
		return
	}
	s.ring(to, g.fd, ends{p.target, p.source}, false, answer)
}

// checkPreamble accepts connections from the other node's pods to this node's pods.
func (s *Switch) checkPreamble(p preamble) error {
	switch {
	case p.to != s.config.Self:
		return fmt.Errorf("node %d asks node %d", p.from, p.to)
	case !s.checks.owns(p.from, s.nodeOf(p.source.Addr())):
		return fmt.Errorf("node %d asks for a connection from %s", p.from, p.source)
	case s.nodeOf(p.target.Addr()) != s.config.Self:
		return fmt.Errorf("node %d asks for a connection to %s", p.from, p.target)
	case p.source.Addr().Is4() != p.target.Addr().Is4():
		return fmt.Errorf("node %d asks for a connection from %s to %s", p.from, p.source, p.target)
	}
	return nil
}

func (s *Switch) keyFrom(node int) []byte {
	if node < 0 || node >= len(s.inward) {
		return nil
	}
	return s.inward[node]
}

// nodeOf returns the node of a pod's address, or -1.
func (s *Switch) nodeOf(address netip.Addr) int {
	for i, n := range s.config.Nodes {
		for _, prefix := range n.Prefixes {
			if prefix.Contains(address) {
				return i
			}
		}
	}
	return -1
}
