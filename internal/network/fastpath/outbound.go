package fastpath

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
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

// destination is the target of a connect.
type destination struct {
	asked, target netip.AddrPort
	// ipv6 is set for an IPv6 socket, whose addresses may be mapped IPv4 ones. direct is
	// set if asked is the target itself, outside if it is not a pod.
	ipv6, direct, outside bool
}

// connecting is a connect that waits for the other node, or for the outside.
type connecting struct {
	o    *outbound
	t    *trap
	peer *peer // nil where it leads outside
	destination
	source netip.AddrPort
	uses   descriptorUse

	mu       sync.Mutex
	state    connState
	fd       int  // the connection to the other node or the outside
	fresh    bool // fd was not an idle connection
	token    uint64
	preamble *[preambleLen]byte // in connAnswer
	since    time.Time
	deadline time.Time
	checkAt  time.Time // the next time for checkDeadline
}

// outbound makes the connections of this node's pods to other nodes and to the outside.
type outbound struct {
	*shared
	config   Config
	control  *control
	pods     *pods
	sockets  *sockets
	peers    []atomic.Pointer[peer] // by node; nil for those without a Switch
	habits   habits
	affinity *affinity
	sweep    *alarm

	mu         sync.Mutex
	connecting map[*connecting]struct{}
}

// watch makes the sweep check a call until its end.
func (o *outbound) watch(c *connecting) {
	o.mu.Lock()
	o.connecting[c] = struct{}{}
	o.mu.Unlock()
	o.sweep.after(sweepEvery)
}

func (o *outbound) unwatch(c *connecting) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.connecting, c)
}

// trim closes unused connections to other nodes, and reports whether any are left.
func (o *outbound) trim() (left bool) {
	for i := range o.peers {
		p := o.peers[i].Load()
		left = p != nil && p.trim() || left
	}
	return left
}

// learn records a switched connection, and leaves the port to the overlay if its
// connections are short.
func (o *outbound) learn(to netip.AddrPort, about record) {
	if o.config.Busy == 0 {
		return
	}
	samples := o.habits.note(to, about, o.config.Busy, time.Now())
	if len(samples) == 0 {
		return
	}
	long := 0 // connections that are still open
	for _, r := range samples {
		if inode, err := o.sockets.inode(&r); err != nil || inode != 0 {
			long++
		}
	}
	if long <= mostLong {
		o.habits.leave(to, time.Now().Add(habitFor))
	}
}
