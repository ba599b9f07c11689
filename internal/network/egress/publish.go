package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	// enterLimit is the timeout for a connection into the cluster. The client is
	// already connected to the host meanwhile.
	enterLimit = 10 * time.Second
	// shortage is the pause after a connection could not be accepted because
	// descriptors or memory are short.
	shortage = 100 * time.Millisecond
)

// Published is a port of the host whose connections go into the cluster. They enter
// it through the device like packets from the outside, so kube-proxy and the port
// mappings of pods apply to them.
type Published struct {
	// Listener is closed when Run ends.
	Listener *net.TCPListener
	// To is an address of the node.
	To netip.AddrPort
}

// publish starts a goroutine for each published port, which accepts connections until ctx
// ends.
func (e *engine) publish(ctx context.Context, group *errgroup.Group) {
	for _, p := range e.Publish {
		stop := context.AfterFunc(ctx, func() { p.Listener.Close() })
		group.Go(func() error {
			defer stop()
			return e.accept(ctx, p)
		})
	}
}

func (e *engine) accept(ctx context.Context, p Published) error {
	for {
		outside, err := p.Listener.AcceptTCP()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connections for %v: %w", p.To, err)
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			e.Log.Warn("cannot accept connections", "to", p.To, "error", err)
			select {
			case <-time.After(shortage):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			continue // the client has gone already
		}
		if !e.workers.start() {
			outside.Close()
			continue
		}
		go func() {
			defer e.workers.group.Done()
			defer outside.Close()
			e.enter(ctx, outside, p.To)
		}()
	}
}

// enter relays a connection from a port of the host into the cluster. The client
// receives a reset if nothing accepts the connection there.
func (e *engine) enter(ctx context.Context, outside *net.TCPConn, to netip.AddrPort) {
	open := e.Counters.tcp.enter()
	defer e.Counters.tcp.leave()
	from := outside.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
	if !e.shares.Take(from) {
		e.Counters.overflow.Add(1)
		e.Log.Debug("connection into the cluster reset, too many are open", "from", from, "to", to)
		_ = outside.SetLinger(0) // fails only when closed
		return
	}
	defer e.shares.Give(from)
	inside, queue, err := e.dialInside(ctx, e.clientInside(from, to.Addr()), to, open)
	if err != nil {
		e.Counters.failed.Add(1)
		e.Log.Debug("connection into the cluster failed", "from", from, "to", to, "error", err)
		_ = outside.SetLinger(0) // fails only when closed
		return
	}
	defer inside.Close()
	c := &connection{engine: e, outside: outside, inside: inside, queue: queue}
	c.relay(ctx)
}

// clientInside returns the client's address in the cluster. It is the real one, which
// a Service with externalTrafficPolicy Local shows, unless the node would not answer
// it through the device.
func (e *engine) clientInside(client, to netip.Addr) netip.Addr {
	if client.Is4() != to.Is4() || e.policy.decide(client) != forward {
		return e.Gateway
	}
	return client
}

// dialInside connects from an address of the outside to an address in the cluster, through
// the stack. It returns the endpoint and the queue of its events.
func (e *engine) dialInside(ctx context.Context, from netip.Addr, to netip.AddrPort, open int64) (tcpip.Endpoint, *waiter.Queue, error) {
	queue := new(waiter.Queue)
	endpoint, err := e.stack.NewEndpoint(tcp.ProtocolNumber, networkOf(to.Addr()), queue)
	if err != nil {
		return nil, nil, stackError(err)
	}
	e.bound(endpoint, open)
	connected := newWaiter(queue, waiter.WritableEvents|waiter.EventErr|waiter.EventHUp)
	defer connected.stop()
	ctx, cancel := context.WithTimeout(ctx, enterLimit)
	defer cancel()
	if err = endpoint.Bind(tcpip.FullAddress{NIC: nic, Addr: stackAddress(from)}); err == nil {
		err = endpoint.Connect(tcpip.FullAddress{NIC: nic, Addr: stackAddress(to.Addr()), Port: to.Port()})
	}
	if _, started := err.(*tcpip.ErrConnectStarted); started {
		select {
		case <-connected.events:
			err = endpoint.LastError()
		case <-ctx.Done():
			endpoint.Abort()
			return nil, nil, ctx.Err()
		}
	}
	if err != nil {
		endpoint.Close()
		return nil, nil, stackError(err)
	}
	return endpoint, queue, nil
}
