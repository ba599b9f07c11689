package fastpath

import (
	"crypto/rand"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// connState is the state of an outgoing connection. doc.go has the table.
type connState int

const (
	connNew       connState = iota
	connChallenge           // waits for the other node's challenge
	connAnswer              // has sent the preamble, and waits for the answer
	connOutside             // waits until the kernel has connected it to the outside
	connDone                // the call was answered, or is left to the overlay
)

// connecting is a connect that waits for the other node, or for the outside.
type connecting struct {
	t    *trap
	peer *peer // nil where it leads outside
	destination
	source netip.AddrPort
	uses   descriptorUse

	mu       sync.Mutex
	state    connState
	fd       int // the connection to the other node or the outside
	fresh    bool
	token    uint64
	preamble *[preambleLen]byte // in connAnswer
	since    time.Time
	deadline time.Time
	checkAt  time.Time // the next time for checkDeadline
}

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
// short time, because a seccomp notification cannot be answered later.
func (c *connecting) setDeadline() {
	s := c.t.s
	timeout := s.config.Timeout
	if flags, err := unix.FcntlInt(uintptr(c.t.socket), unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK != 0 {
		timeout = s.config.NonblockTimeout
	}
	if c.outside {
		timeout = sock.SendTimeout(c.t.socket)
	}
	c.since = time.Now()
	c.deadline = c.since.Add(timeout)
	s.watchConnecting(c, true)
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
		sock.ToIPv4(c.fd) // while it surely is established
	}
	p := preamble{from: c.t.s.config.Self, to: c.peer.node, source: c.source, target: c.target, challenge: b}
	_, _ = rand.Read(p.nonce[:])
	encoded := p.encode(c.peer.key)
	r := c.t.record
	r.asked, r.answer = encoded, [answerLen]byte{}
	r.note(stageAsking, c.fd)
	c.state, c.preamble = connAnswer, &encoded
	c.send()
}

// await waits for the next event of the connection.
func (c *connecting) await() {
	var err error
	var event uint32 = unix.EPOLLIN
	if c.state == connOutside {
		event = unix.EPOLLOUT
	}
	if c.token == 0 {
		err = c.t.s.reactor.add(c.fd, event, c, &c.token)
	} else {
		err = c.t.s.reactor.again(c.fd, c.token, event)
	}
	if err != nil {
		c.fallBack(countNoPeer)
	}
}

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
		c.t.s.counters.add(countNoListener)
		c.leave()
		c.t.answer(0, unix.ECONNREFUSED)
		c.peer.refill()
	default:
		c.fallBack(countPeerOverlay)
	}
}

// checkDeadline ends the wait after its deadline or after a signal: the kernel can
// interrupt a call that was left to it.
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

// leaveConnection closes the connection. It clears the record first: a successor
// must not use the number, which the next descriptor will get.
func (c *connecting) leaveConnection() {
	c.t.record.note(stageBegun, 0)
	c.stopReading()
	if c.fd >= 0 {
		unix.Close(c.fd)
		c.fd = -1
	}
}

func (c *connecting) stopReading() {
	if c.token != 0 {
		c.t.s.reactor.forget(c.fd, c.token)
		c.token = 0
	}
}

// leave closes the connection and the duplicate of the caller's socket.
func (c *connecting) leave() {
	c.end()
	c.t.release()
}

func (c *connecting) end() {
	c.leaveConnection()
	c.state = connDone
	c.t.s.watchConnecting(c, false)
}

// fallBack leaves the call to the overlay.
func (c *connecting) fallBack(why count) {
	c.end()
	c.t.s.leave(c.t, c.t.socket, c.destination, why)
}

// install replaces the caller's socket by the connection, and answers.
func (c *connecting) install(errno unix.Errno) {
	t, s := c.t, c.t.s
	c.stopReading() // the next bytes are the pod's
	number := t.argument(0)
	same := linux.SameFile(os.Getpid(), t.socket, t.tid(), number)
	if !t.waits() {
		c.leave()
		t.cancelled()
		return
	}
	if !same { // another thread has closed the descriptor meanwhile
		c.leave()
		t.answer(0, unix.EBADF)
		return
	}
	t.from.pod.defaults.Load().CopyChanged(t.socket, c.fd, c.ipv6)
	known, err := s.register(c.fd, ends{c.source, c.asked}, c.target, c.ipv6, c.outside)
	if err != nil {
		c.fallBack(countFull)
		return
	}
	// The policy may have changed before Cut could find the connection.
	if !s.permits(c.source.Addr(), c.target, c.outside) {
		s.unregister(known)
		c.fallBack(countPolicy)
		return
	}
	about := *known // the record is reused once the caller has closed the socket
	watches := c.watches(number)
	known.unreported = true
	t.record.cookie, t.record.old = known.cookie, int32(t.socket)
	t.record.note(stageReplacing, c.fd)
	if err := linux.ReplaceDescriptor(t.from.fd, t.call().ID, c.fd, number, t.closesOnExec(number)); err != nil {
		s.unregister(known)
		c.leave()
		if t.waits() {
			t.answer(0, unix.ENOBUFS)
		} else {
			t.cancelled()
		}
		return
	}
	c.watchAgain(watches)
	s.counters.add(known.counted())
	c.leave() // as long as the old socket is open, epoll would report it
	s.report(t, known, errno)
	if c.peer != nil {
		c.peer.refill()
		s.learn(c.asked, about)
	}
}

// watches returns the entries of the caller's epoll instances for its socket.
func (c *connecting) watches(number int) map[int]watch {
	if len(c.uses.epolls) == 0 {
		return nil
	}
	found := map[int]watch{}
	for _, epoll := range c.uses.epolls {
		if w, ok := c.t.watchOf(epoll, number); ok {
			found[epoll] = w
		}
	}
	return found
}

// watchAgain adds these entries for the connection.
func (c *connecting) watchAgain(watches map[int]watch) {
	for epoll, w := range watches {
		if err := c.t.watchAgain(epoll, c.t.argument(0), c.fd, w); err != nil {
			c.t.s.config.Log.Warn("a program may miss events of a connection", "err", err)
		}
	}
}
