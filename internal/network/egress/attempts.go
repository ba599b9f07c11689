package egress

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

// repeatWithin bounds the wait for the second SYN of a pod. Linux repeats a SYN
// after one second, and after as long again as it has waited so far
// (tcp_syn_retries, tcp_syn_linear_timeouts). The rest is for busy nodes.
const repeatWithin = 3 * time.Second

// attempts holds the connections that pods have asked for and do not have yet.
// Some destinations answer only after two minutes or never. So the number of waiting
// attempts is bounded, and shared fairly: when the table is full, the pod with the most
// loses its oldest attempt to a pod with fewer. A SYN that finds no room is ignored, as if
// the network had lost it. The pod's kernel repeats it.
//
// An attempt also ends when the pod stops repeating its SYN: no packet reports that
// a program has given up.
type attempts struct {
	engine *engine

	mu   sync.Mutex
	byID map[stack.TransportEndpointID]*attempt
	// waiting holds the attempts that wait for the host, by pod, oldest first.
	waiting map[netip.Addr][]*attempt
	count   int // of waiting
	warned  bool
}

// attempt is one connection, from the pod's SYN until it is made or refused.
type attempt struct {
	pod netip.Addr
	// sequence is the sequence number of the SYN. An ICMP error quotes it.
	sequence uint32
	began    time.Time
	waits    bool // the destination has not answered yet
	// ctx ends when the pod has given up, or another pod needs the room.
	ctx    context.Context
	cancel context.CancelFunc
	// givenUp fires when the pod should have repeated its SYN and has not.
	givenUp *time.Timer
}

func newAttempts(e *engine) *attempts {
	return &attempts{
		engine:  e,
		byID:    make(map[stack.TransportEndpointID]*attempt),
		waiting: make(map[netip.Addr][]*attempt),
	}
}

// admit handles a SYN. For the first SYN of a connection, it calls forward if there is room,
// and returns the result. It returns false, which resets the connection, if the pod has
// used up its share of open connections. It ignores every other SYN and returns true.
//
// admit and complete hold the lock while they call the forwarder. So attempts and the
// forwarder know the same connections. The forwarder would ignore a second request.
func (a *attempts) admit(ctx context.Context, id stack.TransportEndpointID, sequence uint32, forward func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known := a.byID[id]; known != nil {
		if known.waits {
			known.givenUp.Reset(time.Since(known.began) + repeatWithin)
		}
		return true
	}
	pod := address(id.RemoteAddress)
	if a.engine.shares.Full(pod) {
		// A further attempt of the pod costs only one packet.
		a.engine.hasItsShare(pod)
		return false
	}
	if !a.evictFor(pod) {
		a.engine.Counters.overflow.Add(1)
		return true
	}
	created := &attempt{pod: pod, sequence: sequence, began: time.Now(), waits: true}
	created.ctx, created.cancel = context.WithCancel(ctx)
	if !forward() {
		created.cancel()
		return false
	}
	created.givenUp = time.AfterFunc(repeatWithin, created.cancel)
	a.byID[id] = created
	a.engine.Counters.attempts.enter()
	a.waiting[pod] = append(a.waiting[pod], created)
	a.count++
	return true
}

// evictFor reports whether an attempt of pod may begin. It cancels the oldest
// attempt of the pod with the most, if pod has fewer even afterwards. The caller
// holds the lock.
func (a *attempts) evictFor(pod netip.Addr) bool {
	if len(a.byID) >= a.engine.Attempts+a.engine.Connections {
		return false
	}
	if a.count < a.engine.Attempts {
		return true
	}
	var most netip.Addr
	for other, waiting := range a.waiting {
		if len(waiting) > len(a.waiting[most]) {
			most = other
		}
	}
	if !a.warned {
		a.warned = true
		a.engine.Log.Warn(fmt.Sprintf("delayed connections to the outside: %d wait for an answer, most of them from pod %s", a.count, most))
	}
	if len(a.waiting[pod])+1 >= len(a.waiting[most]) {
		return false
	}
	oldest := a.waiting[most][0]
	a.engine.Counters.overflow.Add(1)
	a.leave(oldest)
	oldest.cancel()
	return true
}

// leave records that an attempt does not wait any more. The caller holds the lock.
func (a *attempts) leave(done *attempt) {
	if !done.waits {
		return
	}
	done.waits = false
	done.givenUp.Stop()
	a.count--
	rest := slices.DeleteFunc(a.waiting[done.pod], func(other *attempt) bool { return other == done })
	if a.waiting[done.pod] = rest; len(rest) == 0 {
		delete(a.waiting, done.pod)
	}
}

// find returns the attempt of a connection, or nil if admit has not admitted it.
func (a *attempts) find(id stack.TransportEndpointID) *attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.byID[id]
}

// answered records that the destination has answered or cannot be reached. The connection
// remains known until complete.
func (a *attempts) answered(done *attempt) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leave(done)
}

// complete forgets a connection, here and in the forwarder.
func (a *attempts) complete(request *tcp.ForwarderRequest, reset bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := request.ID()
	request.Complete(reset) // request has no ID afterwards
	if done := a.byID[id]; done != nil {
		a.leave(done)
		done.cancel()
		delete(a.byID, id)
		a.engine.Counters.attempts.leave()
	}
}
