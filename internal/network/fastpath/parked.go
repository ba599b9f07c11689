package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// ring connects a bell to the pod's listener and parks the connection there. It answers
// the other node before the pod can accept the connection.
func (c *incoming) ring() {
	c.state, c.bell, c.record = inRinging, 0, nil
	p, e := c.pod, c.ends
	promised := c.key == nil
	r := c.takeParked(promised)
	if r == nil {
		c.refuse(verdictOverlay, countFull)
		return
	}
	r.local, r.peer, r.plain, r.again = packEnd(e.local), packEnd(e.peer), c.plain, promised
	bell, err := p.takeBell(c.in.inside, e.ipv6())
	if err != nil && (!promised || errors.Is(err, errPodEnded)) {
		c.in.state.put(r)
		c.in.places.Give(p.address)
		c.refuse(verdictOverlay, countNoPod)
		return
	}
	c.record = r
	p.parked.Add(1)
	if err != nil {
		r.fd = int32(c.fd)
		c.park()
		return
	}
	if !promised {
		r.stage = stageRinging
	}
	c.bell = bell
	r.fd, r.bell = int32(c.fd), int32(bell)
	p.ringing.Lock()
	defer p.ringing.Unlock()
	switch connectBell(bell, e, promised) {
	case 0:
	case unix.ECONNREFUSED:
		c.takeBack()
		c.refuse(verdictRefused, countNoListener)
		return
	default:
		c.takeBack()
		c.refuse(verdictOverlay, countFull)
		return
	}
	if !promised && !e.ipv6() && p.acceptsIPv4(e.local.Port()) {
		sock.ToIPv4(c.fd) // while it surely is established
	}
	// A successor checks whether the answer was sent.
	r.answer = c.encode(verdictConnected)
	r.stage = stageBegun
	if !c.answer(verdictConnected) {
		c.takeBack()
		c.close()
		return
	}
	c.park()
}

// maxParked returns the limit of parked connections. Each of them takes two descriptors,
// and most descriptors of this process must remain for other purposes.
func maxParked() (int, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of descriptors: %w", err)
	}
	return int(min(limit.Cur/8, numRecords/8)), nil
}

// takeParked returns a record and counts the connection in the pod's share of parked
// connections. It returns nil if no record is free or the pod has used up its share. A
// promised connection had a record before, so it may exceed the share.
func (c *incoming) takeParked(promised bool) (r *record) {
	if promised {
		c.in.places.Add(c.pod.address)
		r = c.in.state.takeAgain(kindParked, c.pod.address)
	} else if !c.in.places.Take(c.pod.address) {
		c.in.state.refused(kindParked, c.pod.address)
		return nil
	} else {
		r = c.in.state.take(kindParked, c.pod.address)
	}
	if r == nil {
		c.in.places.Give(c.pod.address)
		c.in.sockets.forgetSoon()
	}
	return r
}

// connectBell connects a bell to the pod's listener. It returns ECONNREFUSED if
// there is no listener. If the listener's queue is full, it returns another error, or 0
// for a promised connection, whose bell then waits for a place.
func connectBell(bell int, e ends, promised bool) unix.Errno {
	errno := sock.ConnectInside(bell, sock.Raw(e.local, e.ipv6()))
	if errno == unix.EALREADY && promised {
		errno = 0 // the kernel repeats the SYN until the queue has a place
	}
	return errno
}

// takeBack frees the record and the bell of a connection that is not parked any more, or
// that could not be parked.
func (c *incoming) takeBack() {
	c.in.state.put(c.record)
	c.record = nil
	c.in.places.Give(c.pod.address)
	c.pod.parked.Add(-1)
	c.pod.giveBell(c.bell, c.ends.ipv6())
	c.bell = 0
}

// park makes takeRung find the connection when the pod accepts its bell.
func (c *incoming) park() {
	c.state, c.since = inParked, time.Now()
	from := netip.AddrPortFrom(netip.Addr{}, uint16(c.fd)) // unique, and the address of no bell
	if c.bell > 0 {
		from, _ = sock.Local(c.bell)
	}
	c.place = c.in.bellKey(c.pod.network.Load(), from, c.ends.local)
	c.in.mu.Lock()
	c.in.parked[c.place] = c
	c.in.mu.Unlock()
	c.in.sweep.after(sweepEvery)
}

// takeRung returns the parked connection of an accepted bell, which is not parked any more.
// It returns nil if accepted is not a bell.
func (in *inbound) takeRung(p *pod, accepted int) *incoming {
	if !in.checks.mayRing(p.parked.Load()) {
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
	in.mu.Lock()
	defer in.mu.Unlock()
	key := in.bellKey(network, bell, local)
	c := in.parked[key]
	if c != nil {
		delete(in.parked, key)
		c.state = inDelivering
		c.again = c.record.again
	}
	return c
}

// rings reports whether an accepted connection is the bell of a parked one.
func (in *inbound) rings(connection int) bool {
	bell, ok1 := sock.Peer(connection)
	local, ok2 := sock.Local(connection)
	network, err := sock.NetworkCookie(connection)
	if !ok1 || !ok2 || err != nil {
		return false
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.parked[in.bellKey(network, bell, local)] != nil
}

// removeParked removes the parked connections that match, and passes them to f. It
// returns how many were parked before.
func (in *inbound) removeParked(which func(*incoming) bool, f func(*incoming)) (before int) {
	var out []*incoming
	in.mu.Lock()
	before = len(in.parked)
	for key, c := range in.parked {
		if which(c) {
			out = append(out, c)
			delete(in.parked, key)
		}
	}
	in.mu.Unlock()
	for _, c := range out {
		c.takeBack()
		f(c)
	}
	return before
}

// ringAgain rings for parked connections whose listener has closed. It returns how many
// were parked.
func (in *inbound) ringAgain(now time.Time) int {
	return in.removeParked(func(c *incoming) bool { return c.unanswered(now) }, (*incoming).ring)
}

// forbid resets the parked connections that are not permitted any more.
func (in *inbound) forbid() {
	in.removeParked(func(c *incoming) bool {
		return !c.plain && !in.control.permits(c.ends.peer.Addr(), c.ends.local, false)
	}, (*incoming).reset)
}

// podEnded resets the parked connections of a pod without processes.
func (in *inbound) podEnded(p *pod) {
	in.removeParked(func(c *incoming) bool { return c.pod == p }, (*incoming).reset)
}

// unanswered reports whether the bell was closed before the pod accepted it, or whether the
// connection has no bell. It returns false during the first sweepEvery.
func (c *incoming) unanswered(now time.Time) bool {
	if now.Sub(c.since) < sweepEvery {
		return false
	}
	return c.bell <= 0 || sock.Polled(c.bell, unix.POLLIN|unix.POLLRDHUP) != 0
}

// adopt continues with a parked connection of a predecessor.
func (in *inbound) adopt(r *record) {
	p := in.pods.at(r.local.addrPort().Addr())
	lost := p == nil || r.fd == 0 || r.stage == stageRinging
	if r.bell > 0 && (lost || p.network.Load() == 0) {
		// The bell has no connection. Disconnected, it is skipped by acceptNext.
		_ = sock.Disconnect(int(r.bell))
		unix.Close(int(r.bell))
		r.bell = 0
	}
	if lost {
		if r.fd > 0 {
			sock.Reset(int(r.fd))
		}
		in.state.put(r)
		return
	}
	if r.answer != [answerLen]byte{} && sock.Sent(int(r.fd)) == challengeLen {
		_, _ = unix.Write(int(r.fd), r.answer[:])
	}
	p.parked.Add(1)
	in.places.Add(p.address)
	c := &incoming{
		in: in, fd: int(r.fd), pod: p, ends: ends{r.local.addrPort(), r.peer.addrPort()}, plain: r.plain,
		record: r, bell: int(r.bell),
	}
	c.park()
}
