package fastpath

import (
	"crypto/rand"
	"maps"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// start begins to connect to the other node, or to the outside.
func (c *connecting) start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setDeadline()
	if c.outside {
		c.reach()
		return
	}
	c.next()
}

// setDeadline limits the wait. Even a call on a non-blocking socket waits for a
// short time, because its socket can be replaced only until the call is answered.
func (c *connecting) setDeadline() {
	timeout := c.o.config.Timeout
	if flags, err := unix.FcntlInt(uintptr(c.t.socket), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		timeout = c.o.config.NonblockTimeout
	}
	if c.outside {
		timeout = sock.SendTimeout(c.t.socket)
	}
	c.since = time.Now()
	c.deadline = c.since.Add(timeout)
	c.o.watch(c)
}

// resume continues a predecessor's call in its last state. fd is its connection.
func (c *connecting) resume(fd int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setDeadline()
	c.fd, c.fresh = fd, true
	if c.outside {
		c.t.record.note(stageAsking, fd)
		c.reachAgain()
		return
	}
	r := c.t.record
	asked := r.asked
	c.state, c.preamble, c.source = connAnswer, &asked, sourceOf(&asked)
	r.note(stageAsking, fd)
	if r.answer != [answerLen]byte{} {
		c.handleAnswer()
		return
	}
	if sock.Sent(fd) != 0 {
		c.await()
		return
	}
	c.send()
}

// send writes the preamble, and waits for the answer.
func (c *connecting) send() {
	if n, err := unix.Write(c.fd, c.preamble[:]); err != nil || n != len(c.preamble) {
		c.fallBack(countNoPeer)
		return
	}
	// The answer is acknowledged at once: a server that speaks first would
	// otherwise be held up by Nagle's algorithm.
	_ = unix.SetsockoptInt(c.fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	c.await()
}

// next takes a connection to the other node, and waits for its challenge.
func (c *connecting) next() {
	c.state = connChallenge
	var err error
	if c.fd, c.fresh, err = c.peer.take(); err != nil {
		c.fd = -1
		c.fallBack(countNoPeer)
		return
	}
	c.ask()
}

// ask reads the challenge, if it is there, and sends the preamble.
func (c *connecting) ask() {
	var b [challengeLen]byte
	n, err := unix.Read(c.fd, b[:])
	switch {
	case err == unix.EAGAIN:
		c.await()
		return
	case err != nil || n != challengeLen:
		c.leaveConnection()
		if c.fresh {
			c.peer.fail()
			c.fallBack(countNoPeer)
			return
		}
		c.next() // closed by the other side while it was idle
		return
	}
	if !c.ipv6 {
		sock.ToIPv4(c.fd) // works only while the connection is established
	}
	p := preamble{from: c.o.config.Self, to: c.peer.node, source: c.source, target: c.target, challenge: b}
	_, _ = rand.Read(p.nonce[:])
	encoded := p.encode(c.peer.key)
	r := c.t.record
	r.asked, r.answer = encoded, [answerLen]byte{}
	r.note(stageAsking, c.fd)
	c.state, c.preamble = connAnswer, &encoded
	c.send()
}

// ready continues in the state of the connection.
func (c *connecting) ready(uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case connChallenge:
		c.ask()
	case connAnswer:
		c.readAnswer()
	case connOutside:
		c.reached()
	}
}

// readAnswer reads the answer, and no byte more: the next bytes are the pod's. It
// reads into the record, so that a successor finds the answer or can still read it.
func (c *connecting) readAnswer() {
	b := &c.t.record.answer
	n, err := unix.Read(c.fd, b[:])
	if err == unix.EAGAIN {
		c.await()
		return
	}
	if err != nil || n != len(b) {
		c.fallBack(countNoPeer)
		return
	}
	c.handleAnswer()
}

// handleAnswer acts on the answer.
func (c *connecting) handleAnswer() {
	v, err := decodeAnswer(&c.t.record.answer, c.peer.key, c.preamble)
	if err == nil {
		c.peer.answered()
	}
	switch {
	case err != nil:
		c.peer.fail()
		c.fallBack(countForged)
	case v == verdictConnected:
		c.install(0)
	case v == verdictRefused:
		c.o.counters.add(countNoListener)
		c.leave()
		c.t.answer(0, unix.ECONNREFUSED)
		c.peer.refill()
	default:
		c.fallBack(countPeerOverlay)
	}
}

// checkDeadlines checks all calls that wait, and returns their number.
func (o *outbound) checkDeadlines(now time.Time) int {
	o.mu.Lock()
	all := slices.Collect(maps.Keys(o.connecting))
	o.mu.Unlock()
	for _, c := range all {
		c.checkDeadline(now)
	}
	return len(all)
}

// checkDeadline ends the wait after its deadline. It also leaves a call with a pending
// signal to the kernel, which can interrupt it.
func (c *connecting) checkDeadline(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == connDone || now.Before(c.checkAt) {
		return
	}
	// The longer a call has waited, the more rarely it is checked.
	c.checkAt = now.Add(min(time.Second, max(sweepEvery, now.Sub(c.since)/20)))
	switch {
	case !c.t.waits():
		c.leave()
		c.t.cancelled()
	case c.state == connOutside && now.After(c.deadline):
		c.install(unix.EINPROGRESS) // the kernel goes on connecting
	case now.After(c.deadline):
		c.peer.timedOut()
		c.fallBack(countPeerLate)
	case now.Sub(c.since) > sweepEvery && linux.Interrupted(c.t.tid()):
		c.fallBack(countInterrupted)
	}
}
