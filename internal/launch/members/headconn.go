package members

import (
	"context"
	"net/netip"
	"sync"

	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
)

// headConn is a node's connection to the head. The head itself has none.
type headConn struct {
	mu   sync.Mutex
	peer *rendezvous.Peer
	// ready is set when this node is ready to report to the head.
	ready bool
	// left is set when this node has left the run.
	left bool
}

// head returns the current connection to the head.
func (c *headConn) head() *rendezvous.Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer
}

// setHead stores a new connection, and reports whether it did. It does not if this
// node has left.
func (c *headConn) setHead(peer *rendezvous.Peer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left {
		return false
	}
	c.peer = peer
	return true
}

// leaveHead lets no further connection in, and returns the last one.
func (c *headConn) leaveHead() *rendezvous.Peer {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = true
	return c.peer
}

// HasHead reports whether this node has connected to a head.
func (c *headConn) HasHead() bool { return c.head() != nil }

// HeadAddress returns the address of the head.
func (c *headConn) HeadAddress() netip.Addr { return hostnet.HostOf(c.head().RemoteAddr()) }

// introduce sends a hello to the head and receives the answer.
func (c *headConn) introduce(ctx context.Context, said hello) (answer Welcome, err error) {
	if err := c.head().Send(ctx, said); err != nil {
		return answer, err
	}
	err = c.head().Receive(ctx, &answer)
	return answer, err
}

// SetReady reports to the head that this node is ready.
func (c *headConn) SetReady(ctx context.Context) {
	c.mu.Lock()
	c.ready = true
	c.mu.Unlock()
	c.reportReady(ctx)
}

// reportReady reports to the head that this node is ready, if it is. If the connection
// has just broken, the node reports it again on the next one.
func (c *headConn) reportReady(ctx context.Context) {
	c.mu.Lock()
	ready, head := c.ready, c.peer
	c.mu.Unlock()
	if ready {
		_ = head.Send(ctx, statusMessage{Ready: true})
	}
}
