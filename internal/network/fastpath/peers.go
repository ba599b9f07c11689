package fastpath

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// peer is a node, including this one, whose pods also reach each other through Services.
// It keeps idle connections, so that a connect of a pod costs one round trip, as on any
// network.
type peer struct {
	node      int
	endpoints []netip.AddrPort
	key       []byte        // of connections to the peer
	turn      atomic.Uint32 // selects the next endpoint

	mu    sync.Mutex
	idle  []int
	want  int // the number of idle connections to keep
	taken int // connections since the last trim
	// late counts consecutive connections without an answer in time.
	late int
	// avoid is the time until which connections stay on the overlay, because the peer did
	// not answer.
	avoid time.Time
	// retired is set when the node has left its place.
	retired bool
}

const (
	minIdle  = 4
	maxIdle  = 64
	avoidFor = 5 * time.Second

	// maxLate consecutive timeouts mean that a node is unreachable. A single one may be a
	// lost packet, which TCP sends again after 200 ms or 1 s.
	maxLate = 2
)

func newPeers(c Config) ([]atomic.Pointer[peer], error) {
	peers := make([]atomic.Pointer[peer], len(c.Nodes))
	for i, n := range c.Nodes {
		p, err := newPeer(c, i, n.Endpoints)
		if err != nil {
			return nil, err
		}
		peers[i].Store(p)
	}
	return peers, nil
}

// newPeer returns nil for a node without endpoints.
func newPeer(c Config, node int, endpoints []netip.AddrPort) (*peer, error) {
	if len(endpoints) == 0 {
		return nil, nil
	}
	key, err := pairKey(c.Key, c.Self, node)
	if err != nil {
		return nil, fmt.Errorf("derive the key to node %d: %w", node, err)
	}
	return &peer{node: node, endpoints: endpoints, key: key}, nil
}

// ReplaceNode gives the place of another node to the node with these endpoints, or to a
// node without a Switch. The place keeps its prefixes. Connections that exist are not
// changed. It may be called while Run runs.
func (s *Switch) ReplaceNode(node int, endpoints []netip.AddrPort) error {
	if node < 0 || node >= len(s.outbound.peers) || node == s.config.Self {
		return fmt.Errorf("replace node %d of the fast path: it is this node (%d), or none of %d", node, s.config.Self, len(s.outbound.peers))
	}
	p, err := newPeer(s.config, node, endpoints)
	if err != nil {
		return err
	}
	if old := s.outbound.peers[node].Swap(p); old != nil {
		old.retire()
	}
	return nil
}

// retire closes the idle connections. A connect that has chosen the peer before gets no
// further one.
func (p *peer) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fd := range p.idle {
		unix.Close(fd)
	}
	p.idle, p.want, p.retired = nil, 0, true
}

// take returns a connection and whether it is new. The challenge may not have arrived. take
// returns EHOSTUNREACH while the peer is avoided.
func (p *peer) take() (fd int, fresh bool, err error) {
	p.mu.Lock()
	if p.retired || time.Now().Before(p.avoid) {
		p.mu.Unlock()
		return -1, false, unix.EHOSTUNREACH
	}
	p.taken++
	if n := len(p.idle); n > 0 {
		fd := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return fd, false, nil
	}
	p.want = min(max(minIdle, 2*p.want), maxIdle)
	p.mu.Unlock()
	fd, err = p.dial()
	return fd, true, err
}

// fail avoids the peer for avoidFor.
func (p *peer) fail() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.avoid = time.Now().Add(avoidFor)
}

// timedOut records that a connection was not answered in time. After maxLate of them it
// avoids the peer.
func (p *peer) timedOut() {
	p.mu.Lock()
	p.late++
	away := p.late >= maxLate
	p.mu.Unlock()
	if away {
		p.fail()
	}
}

// answered records that the peer is reachable.
func (p *peer) answered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.late = 0
}

// dial starts to connect to the next endpoint of the peer.
func (p *peer) dial() (int, error) {
	endpoint := p.endpoints[int(p.turn.Add(1))%len(p.endpoints)]
	fd, ipv6, err := sock.New(endpoint.Addr())
	if err != nil {
		return -1, err
	}
	if errno := sock.Connect(fd, sock.Raw(endpoint, ipv6)); errno != 0 && errno != unix.EINPROGRESS {
		unix.Close(fd)
		return -1, fmt.Errorf("connect to %s: %w", endpoint, errno)
	}
	return fd, nil
}

// refill makes idle connections until there are as many as wanted, but at most two. One of
// them replaces the connection that was taken.
func (p *peer) refill() {
	for range 2 {
		p.mu.Lock()
		enough := len(p.idle) >= p.want
		p.mu.Unlock()
		if enough {
			return
		}
		fd, err := p.dial()
		if err != nil {
			return
		}
		p.mu.Lock()
		if p.retired {
			unix.Close(fd)
		} else {
			p.idle = append(p.idle, fd)
		}
		p.mu.Unlock()
	}
}

// trim closes the idle connections if none was taken since the last call. It reports
// whether any are left.
func (p *peer) trim() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken == 0 {
		for _, fd := range p.idle {
			unix.Close(fd)
		}
		p.idle, p.want = nil, 0
	}
	p.taken = 0
	return len(p.idle) > 0
}
