package fastpath

import (
	"crypto/rand"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPending limits the connections that wait for a preamble. Idle connections of
	// other nodes are among them.
	maxPending = 4096
	// pendingFor limits that wait.
	pendingFor = 2 * time.Minute
)

// peerListener accepts connections of other nodes.
type peerListener struct {
	in    *inbound
	fd    int
	token uint64
}

func (d *peerListener) ready(uint32) { d.in.acceptAll(d.fd, d.token, d.in.add) }

// add sends the challenge, and waits for the preamble.
func (in *inbound) add(fd int) {
	c := &incoming{in: in, fd: fd, since: time.Now()}
	_, _ = rand.Read(c.challenge[:])
	if n, err := unix.Write(fd, c.challenge[:]); err != nil || n != challengeLen {
		unix.Close(fd)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in.mu.Lock()
	full := len(in.pending) >= maxPending
	if !full {
		in.pending[c] = struct{}{}
	}
	in.mu.Unlock()
	var err error
	if !full {
		err = in.reactor.add(fd, unix.EPOLLIN, c, &c.token)
	}
	if full || err != nil {
		in.counters.add(countFull)
		c.drop()
	}
}

// isPending reports whether the connection waits for its preamble.
func (c *incoming) isPending() bool {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	_, is := c.in.pending[c]
	return is
}

// stopPending ends the wait for the preamble.
func (c *incoming) stopPending() {
	c.in.mu.Lock()
	delete(c.in.pending, c)
	c.in.mu.Unlock()
	if c.token != 0 {
		c.in.reactor.forget(c.fd, c.token)
	}
}

// drop closes a pending connection.
func (c *incoming) drop() {
	c.stopPending()
	c.close()
}

// expirePending closes connections that have waited too long, and returns how many waited.
func (in *inbound) expirePending(now time.Time) int {
	in.mu.Lock()
	var all []*incoming
	for c := range in.pending {
		all = append(all, c)
	}
	in.mu.Unlock()
	for _, c := range all {
		c.expire(now)
	}
	return len(all)
}

func (c *incoming) expire(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Other goroutines may own it after it was pending.
	if c.isPending() && now.Sub(c.since) > pendingFor {
		c.drop()
	}
}

// ready reads the preamble.
func (c *incoming) ready(uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isPending() {
		return
	}
	n, err := unix.Read(c.fd, c.preamble[c.read:])
	if err == unix.EAGAIN {
		n = 0
	} else if n == 0 || err != nil {
		c.drop() // the other node did not need the connection
		return
	}
	if c.read += n; c.read < len(c.preamble) {
		if c.in.reactor.again(c.fd, c.token, unix.EPOLLIN) != nil {
			c.drop()
		}
		return
	}
	c.handlePreamble()
}

// handlePreamble acts on the preamble.
func (c *incoming) handlePreamble() {
	p, key, err := decodePreamble(&c.preamble, c.challenge, c.in.control.keyFrom)
	if !c.in.checks.trusts(err, key) {
		c.in.counters.add(countForged)
		c.drop()
		return
	}
	if err := c.in.control.check(p); err != nil {
		c.in.counters.add(countForged)
		c.in.log.Warn("a node asked for a connection that is not its own", "err", err)
		c.drop()
		return
	}
	c.stopPending()
	c.key, c.ends = key, ends{p.target, p.source}
	c.pod = c.in.pods.at(p.target.Addr())
	switch {
	case c.pod == nil:
		c.refuse(verdictOverlay, countNoPod)
	case !c.in.control.permits(p.source.Addr(), p.target, false):
		c.refuse(verdictOverlay, countPolicy)
	default:
		c.ring()
	}
}
