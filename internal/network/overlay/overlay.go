package overlay

import (
	"context"
	"crypto/rand"
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
	// Name identifies the node in messages.
	Name string
	// Endpoints holds the node's UDP sockets on the hosts' network. A sender
	// uses the endpoint with its queue's index, so that flows spread over the
	// cores of the receiver. A node without endpoints is unreachable
	// over UDP.
	Endpoints []netip.AddrPort
	// Prefixes holds the addresses of the node and its pods. A packet goes to
	// the node with the longest matching prefix.
	Prefixes []netip.Prefix
	// Stream is the address of the node's Listener on the hosts' network, or
	// the zero value if it has none.
	Stream netip.AddrPort
}

// Config configures an Overlay.
type Config struct {
	// Queues holds the queues of one TUN device with IFF_NO_PI and
	// IFF_VNET_HDR, as returned by linux.OpenTUNQueues, and Conns one bound
	// socket for each queue. Queues and sockets may belong to different network
	// namespaces. Nothing else may read from them. New duplicates them, and closes
	// the originals unless it returns an error.
	Queues []*os.File
	Conns  []*net.UDPConn
	// Carrier selects the transport, which must be the same on all nodes.
	// Listener accepts the streams of other nodes. If it is nil, no packet
	// arrives over TCP. Run closes Listener, unless Carrier is carrierUDP, which
	// ignores it.
	Carrier  Carrier
	Listener *net.TCPListener
	// Dial connects to the Listener of another node. nil selects net.Dialer.
	// Tests dial in other network namespaces.
	Dial func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error)
	// Key is the secret of the job, at least 16 bytes, equal on all nodes.
	Key []byte
	// Nodes holds all nodes, in the same order on every node, and Self the
	// index of this node. This node's own Endpoints are not used.
	Nodes []Node
	Self  int
	// Log receives problems, repeated ones at level debug.
	Log *slog.Logger
}

const minKey = 16

// Validate returns all problems at once.
func (c Config) Validate() error {
	var problems []error
	complain := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if len(c.Queues) == 0 || len(c.Queues) != len(c.Conns) {
		complain("%d queues and %d sockets: each queue needs one socket", len(c.Queues), len(c.Conns))
	}
	if len(c.Key) < minKey {
		complain("a key of %d bytes is shorter than %d", len(c.Key), minKey)
	}
	if c.Self < 0 || c.Self >= len(c.Nodes) {
		complain("node %d is none of %d", c.Self, len(c.Nodes))
	}
	switch c.Carrier {
	case carrierAuto, carrierUDP, carrierTCP:
	default:
		complain("carrier %q is none of %q, %q", c.Carrier, carrierUDP, carrierTCP)
	}
	if c.Carrier == carrierTCP && c.Listener == nil {
		complain("no listener for packets over TCP")
	}
	if c.Log == nil {
		complain("no logger")
	}
	return errors.Join(problems...)
}

// Overlay carries the packets of one node.
type Overlay struct {
	key     []byte
	self    int
	ipv6    bool
	carrier Carrier
	listen  *net.TCPListener
	dialTCP func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error)
	log     *slog.Logger
	queues  []*queue
	counts  []counts
	prober  *prober
	// table is replaced when a node changes, by one setter at a time.
	table   atomic.Pointer[table]
	setting sync.Mutex
	ending  atomic.Bool
}

// New prepares an overlay, which carries packets once Run is called. It must be
// called in the network namespace of the sockets, because it looks up path MTUs
// there.
func New(config Config) (_ *Overlay, err error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("check overlay configuration: %w", err)
	}
	o := &Overlay{
		key: config.Key, self: config.Self, carrier: config.Carrier, listen: config.Listener, dialTCP: config.Dial,
		log: config.Log, counts: make([]counts, len(config.Queues)),
	}
	if o.dialTCP == nil {
		o.dialTCP = func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
			return new(net.Dialer).DialTCP(ctx, "tcp", netip.AddrPort{}, to)
		}
	}
	o.prober = newProber(o, config.Carrier, config.Log)
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	families := map[bool]bool{}
	for i, conn := range config.Conns {
		q, err := newQueue(i, config, o)
		if err != nil {
			return nil, err
		}
		o.queues = append(o.queues, q)
		if o.ipv6, err = isIPv6(conn); err != nil {
			return nil, err
		}
		families[o.ipv6] = true
	}
	if len(families) > 1 {
		return nil, errors.New("check overlay configuration: some sockets are IPv6 and some IPv4")
	}
	if o.self >= len(config.Nodes) {
		return nil, fmt.Errorf("set nodes of the overlay: node %d is none of %d", o.self, len(config.Nodes))
	}
	nodes, err := newTable(o.key, o.self, config.Nodes, o.ipv6, len(o.queues))
	if err != nil {
		return nil, fmt.Errorf("set nodes of the overlay: %w", err)
	}
	o.table.Store(nodes)
	for _, q := range o.queues {
		q.table = &o.table
	}
	for i := range config.Queues {
		_ = config.Queues[i].Close()
		_ = config.Conns[i].Close()
	}
	return o, nil
}

func (o *Overlay) close() {
	for _, q := range o.queues {
		q.close()
	}
}

// Run carries packets until ctx ends, and then returns nil. It returns an error
// if a device or socket fails. It can be called once. When it returns, all its
// goroutines have ended.
func (o *Overlay) Run(ctx context.Context) error {
	defer o.close()
	end, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("run the overlay: %w", err)
	}
	defer unix.Close(end)
	for _, q := range o.queues {
		q.end = end
	}
	group, groupCtx := errgroup.WithContext(ctx)
	o.prober.connect = func(ctx context.Context, one *path, generation uint64) {
		group.Go(func() error { o.dial(ctx, one, generation, o.prober.streams); return nil })
	}
	for _, q := range o.queues {
		group.Go(q.transmit)
		group.Go(q.receive)
	}
	group.Go(func() error { return o.prober.run(groupCtx) })
	if o.listen != nil && o.carrier != carrierUDP {
		group.Go(func() error { return o.acceptStreams(groupCtx) })
	}
	group.Go(func() error {
		<-groupCtx.Done()
		o.ending.Store(true)
		_, err := unix.Write(end, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		return err
	})
	return group.Wait()
}

func newNonce() (n nonce) {
	rand.Read(n[:]) // never fails
	return n
}
