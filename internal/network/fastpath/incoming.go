package fastpath

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
	"berth.dev/berth/internal/network/share"
)

// incomingState is the state of an incoming connection. doc.go has the table.
type incomingState int

const (
	inPending    incomingState = iota // has not sent its preamble
	inRinging                         // a bell connects to the pod's listener
	inParked                          // waits until the pod accepts its bell
	inDelivering                      // a caller of accept is about to receive it
	inDone                            // the pod has it, or it is closed
)

// incoming is a connection for a listener of a pod. A connection of the overlay begins in
// inDelivering, and is parked only if its caller was interrupted.
type incoming struct {
	in    *inbound
	fd    int
	state incomingState
	// since is the start of inPending or inParked.
	since time.Time

	// In inPending. The lock excludes ready and expire.
	mu        sync.Mutex
	token     uint64
	challenge challenge
	preamble  [preambleLen]byte
	read      int // bytes of the preamble
	// key is set while the other node waits for an answer.
	key []byte

	// From inRinging on. The lock of inbound guards a parked connection: whoever takes
	// it out of the map owns it.
	pod   *pod
	ends  ends
	plain bool // of the overlay
	// bell is the connection that the pod's program accepts. It is 0 if no bell was
	// available.
	bell   int
	record *record
	place  bellKey // in the map of inbound

	// In inDelivering.
	known *record // of the switched socket; nil if plain
	// again is set if the caller may already have the connection from an interrupted call.
	again bool
}

// bellKey identifies the bell of an accepted connection. It includes the namespace,
// because a pod with capabilities can give itself any address.
type bellKey struct {
	network     uint64
	bell, local netip.AddrPort
}

// inbound holds the connections that other nodes make to this node's pods, from the first
// byte until a program accepts them.
type inbound struct {
	*shared
	control *control
	pods    *pods
	sockets *sockets
	sweep   *alarm
	// places shares the parked connections among the pods.
	places *share.Places

	mu      sync.Mutex
	pending map[*incoming]struct{}
	parked  map[bellKey]*incoming
}

func (in *inbound) bellKey(network uint64, bell, local netip.AddrPort) bellKey {
	return bellKey{in.checks.namespace(network), bell, local}
}

// encode returns the answer to the other node. It returns zeros if the other node does not
// wait for an answer.
func (c *incoming) encode(v verdict) (b [answerLen]byte) {
	if c.key == nil {
		return b
	}
	return encodeAnswer(v, c.key, &c.preamble)
}

// answer sends the answer to the other node, if it waits for one. It returns false if
// sending fails.
func (c *incoming) answer(v verdict) bool {
	if c.key == nil {
		return true
	}
	b := c.encode(v)
	c.key = nil
	n, err := unix.Write(c.fd, b[:])
	return err == nil && n == len(b)
}

// close ends a connection that no pod will receive.
func (c *incoming) close() {
	c.state = inDone
	unix.Close(c.fd)
}

// reset ends a connection that was promised.
func (c *incoming) reset() {
	c.state = inDone
	sock.Reset(c.fd)
}

// refuse ends a connection that no pod will receive, for the reason why. If it was
// promised, it is reset. Otherwise the answer must arrive, which a reset could overtake.
func (c *incoming) refuse(v verdict, why count) {
	c.in.counters.add(why)
	if c.key == nil {
		c.reset()
		return
	}
	c.answer(v)
	c.close()
}
