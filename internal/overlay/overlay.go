package overlay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Node is a member of the cluster as the overlay sees it.
type Node struct {
	// Name is for messages.
	Name string
	// Endpoints are its sockets on the hosts' network. Whoever sends to it
	// takes the one of the queue, so that flows spread over its cores. A node
	// without any is known, but not reached.
	Endpoints []netip.AddrPort
	// Prefixes are its addresses, those of its pods included. A packet goes
	// to the node with the longest prefix that holds its destination.
	Prefixes []netip.Prefix
}

// Config says what is connected with what.
type Config struct {
	// Queues are of one TUN device with IFF_NO_PI and IFF_VNET_HDR, as
	// linux.OpenTUNQueues makes them, and Conns as many bound sockets, in
	// whatever network namespace they were made. Nobody else may read them.
	// They are not closed.
	Queues []*os.File
	Conns  []*net.UDPConn
	// Key is the secret of the job, at least 16 bytes, the same on all nodes.
	Key []byte
	// Nodes are all nodes, in the same order on each; Self is this one's
	// index. The Endpoints of the node itself are not used.
	Nodes []Node
	Self  int
	// Log gets problems that repeat at level debug.
	Log *slog.Logger
}

const minKey = 16

// Validate returns all problems at once.
func (c Config) Validate() error {
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(c.Queues) == 0 || len(c.Queues) != len(c.Conns) {
		complain("%d queues and %d sockets: each queue needs one", len(c.Queues), len(c.Conns))
	}
	if len(c.Key) < minKey {
		complain("a key of %d bytes is shorter than %d", len(c.Key), minKey)
	}
	if c.Self < 0 || c.Self >= len(c.Nodes) {
		complain("node %d is none of %d", c.Self, len(c.Nodes))
	}
	if c.Log == nil {
		complain("no logger")
	}
	return errors.Join(problems...)
}

// Overlay is one node's part.
type Overlay struct {
	key    []byte
	self   int
	ipv6   bool
	queues []*queue
	counts []counts
	tables atomic.Pointer[table]
	nodes  sync.Mutex // held while the table is replaced
}

// New prepares an overlay. Nothing is carried before Run.
func New(config Config) (*Overlay, error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("check overlay configuration: %w", err)
	}
	o := &Overlay{key: config.Key, self: config.Self, counts: make([]counts, len(config.Queues))}
	families := map[bool]bool{}
	for i, file := range config.Queues {
		q, err := newQueue(file, &o.tables, &o.counts[i])
		if err != nil {
			return nil, err
		}
		if q.carrier, err = newUDPCarrier(i, config.Conns[i], &o.tables, &o.counts[i], config.Log); err != nil {
			return nil, err
		}
		if o.ipv6, err = isIPv6(config.Conns[i]); err != nil {
			return nil, err
		}
		families[o.ipv6] = true
		o.queues = append(o.queues, q)
	}
	if len(families) > 1 {
		return nil, errors.New("check overlay configuration: some sockets are IPv6 and some IPv4")
	}
	if err := o.SetNodes(config.Nodes); err != nil {
		return nil, err
	}
	return o, nil
}

// SetNodes replaces the nodes: one may have come back at another address. The
// indices of those that stay, and of the node itself, must be the same. It may
// be called at any time.
func (o *Overlay) SetNodes(nodes []Node) error {
	if o.self >= len(nodes) {
		return fmt.Errorf("set nodes of the overlay: node %d is none of %d", o.self, len(nodes))
	}
	o.nodes.Lock()
	defer o.nodes.Unlock()
	t, err := newTable(o.key, o.self, nodes, o.ipv6)
	if err != nil {
		return fmt.Errorf("set nodes of the overlay: %w", err)
	}
	o.tables.Store(t)
	return nil
}

// Run carries packets until ctx ends (nil), or a device or socket fails. It
// can be called once. When it returns, no goroutine of it is left.
func (o *Overlay) Run(ctx context.Context) error {
	group, groupCtx := errgroup.WithContext(ctx)
	for _, q := range o.queues {
		group.Go(q.transmit)
		group.Go(func() error { return q.carrier.receive(q.gluer) })
	}
	group.Go(func() error {
		<-groupCtx.Done()
		for _, q := range o.queues {
			q.stop()
		}
		return nil
	})
	return group.Wait()
}

// isIPv6 tells whether a socket takes IPv6 addresses, be it for IPv4 too.
func isIPv6(conn *net.UDPConn) (bool, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false, fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	var domain int
	var failure error
	err = raw.Control(func(fd uintptr) { domain, failure = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN) })
	if err := errors.Join(err, failure); err != nil {
		return false, fmt.Errorf("use socket %s: %w", conn.LocalAddr(), err)
	}
	return domain == unix.AF_INET6, nil
}
