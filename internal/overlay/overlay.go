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
	// Name is for messages.
	Name string
	// Endpoints are its sockets on the hosts' network. Whoever sends to it
	// takes the one of the queue, so that flows spread over its cores. A node
	// without any is known, but not reached.
	Endpoints []netip.AddrPort
	// Prefixes are its addresses, those of its pods included. A packet goes
	// to the node with the longest prefix that holds its destination.
	Prefixes []netip.Prefix
	// Stream is where its Listener is on the hosts' network; the zero value
	// where it has none.
	Stream netip.AddrPort
}

// Config says what is connected with what.
type Config struct {
	// Queues are of one TUN device with IFF_NO_PI and IFF_VNET_HDR, as
	// linux.OpenTUNQueues makes them, and Conns as many bound sockets, in
	// whatever network namespace they were made. Nobody else may read them. New
	// takes them over and closes them: who needs them longer keeps duplicates.
	Queues []*os.File
	Conns  []*net.UDPConn
	// Carrier is how packets travel; all nodes must agree. Listener, which is
	// closed at the end of Run, takes the streams of other nodes: without, no
	// packet comes over TCP. With CarrierUDP it is not used.
	Carrier  Carrier
	Listener *net.TCPListener
	// Dial connects to the Listener of another node; nil means what net.Dialer
	// does. Tests dial in other network namespaces.
	Dial func(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error)
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
	switch c.Carrier {
	case CarrierAuto, CarrierUDP, CarrierTCP:
	default:
		complain("carrier %q is none of %q, %q", c.Carrier, CarrierUDP, CarrierTCP)
	}
	if c.Carrier == CarrierTCP && c.Listener == nil {
		complain("no listener for packets over TCP")
	}
	if c.Log == nil {
		complain("no logger")
	}
	return errors.Join(problems...)
}

// Overlay is one node's part.
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
	tables  atomic.Pointer[table]
	nodes   sync.Mutex // held while the table is replaced
	ending  atomic.Bool
}

// New prepares an overlay, for which Run must be called. Nothing is carried
// before. It must be called in the network namespace of the sockets, as
// SetNodes.
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
	if err := o.SetNodes(config.Nodes); err != nil {
		return nil, err
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

// SetNodes replaces the nodes: one may have come back at another address. The
// indices of those that stay, and of the node itself, must be the same. It may
// be called at any time.
func (o *Overlay) SetNodes(nodes []Node) error {
	if o.self >= len(nodes) {
		return fmt.Errorf("set nodes of the overlay: node %d is none of %d", o.self, len(nodes))
	}
	o.nodes.Lock()
	defer o.nodes.Unlock()
	t, err := newTable(o.key, o.self, nodes, o.ipv6, len(o.queues), o.tables.Load())
	if err != nil {
		return fmt.Errorf("set nodes of the overlay: %w", err)
	}
	o.tables.Store(t)
	select {
	case o.prober.kicks <- nil:
	default: // It has other reasons to look.
	}
	return nil
}

// Run carries packets until ctx ends (nil), or a device or socket fails. It
// can be called once. When it returns, no goroutine of it is left.
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
	if o.listen != nil && o.carrier != CarrierUDP {
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
