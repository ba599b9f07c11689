package egress

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"berth.dev/berth/internal/network/share"
)

// nic is the number of the stack's only interface.
const nic tcpip.NICID = 1

// engine holds the state of one Run.
type engine struct {
	Config
	policy policy
	link   *link
	stack  *stack.Stack
	flows  *flowTable
	dns    *resolver
	// workers counts the goroutines of connections and queries.
	workers  workers
	attempts *attempts
	shares   *share.Places // of the TCP connections
	warnEcho sync.Once
	warned   sync.Map // the warnings that warnOnce has logged
}

// Run forwards the packets of the TUN device until ctx ends, and then returns nil. It
// returns an error if config is invalid, the device is gone, or a listener of
// Config.Publish was closed. Run works on a duplicate of tun, so the caller may close tun
// at once. The device must carry IP packets without a further header (IFF_NO_PI). With
// IFF_VNET_HDR, which linux.OpenTUN sets, Run is several times as fast. When Run returns,
// all its sockets are closed and all its goroutines have ended.
func Run(ctx context.Context, tun *os.File, config Config) error {
	if config.Counters == nil {
		config.Counters = new(Counters)
	}
	if err := config.Validate(); err != nil {
		return fmt.Errorf("check egress configuration: %w", err)
	}
	link, err := newLink(tun, config.MTU, &config.Counters.dropped)
	if err != nil {
		return err
	}
	defer link.shut()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e := &engine{
		Config: config,
		policy: newPolicy(config),
		link:   link,
		dns:    newResolver(config.ResolvConf),
	}
	e.flows, e.attempts, e.shares = newFlowTable(e), newAttempts(e), share.New(e.Connections)
	if err := e.startStack(ctx); err != nil {
		return err
	}

	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(link.read)
	e.publish(groupCtx, group)
	group.Go(func() error {
		<-groupCtx.Done()
		link.deafen()
		return nil
	})
	err = group.Wait()
	cancel(errors.Join(err, context.Canceled))
	// No packet arrives any more, so no flow can start. Connections end with ctx, and
	// handshakes when the stack drops its endpoints. The link stays open for resets to
	// the pods.
	e.flows.close()
	e.workers.refuse()
	e.stack.Close()
	e.workers.wait()
	link.shut()
	config.Counters.repeated.Add(e.stack.Stats().TCP.Retransmits.Value())
	e.stack.Destroy()
	return err
}

// startStack sets up the user-mode stack, which accepts packets to any address and answers
// from that address.
func (e *engine) startStack(ctx context.Context) error {
	e.stack = stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol, ipv6.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	if err := e.setUpTCP(ctx); err != nil {
		return err
	}
	e.stack.SetTransportProtocolHandler(udp.ProtocolNumber, func(id stack.TransportEndpointID, packet *stack.PacketBuffer) bool {
		return e.handleUDP(ctx, id, packet)
	})
	e.link.inspect = e.inspect
	steps := []struct {
		what string
		err  tcpip.Error
	}{
		{"attach the device", e.stack.CreateNIC(nic, e.link)},
		{"accept packets to any address", e.stack.SetPromiscuousMode(nic, true)},
		{"answer from any address", e.stack.SetSpoofing(nic, true)},
	}
	for _, step := range steps {
		if step.err != nil {
			return fmt.Errorf("set up user-mode network stack: %s: %s", step.what, step.err)
		}
	}
	e.stack.SetRouteTable([]tcpip.Route{
		{Destination: header.IPv4EmptySubnet, NIC: nic},
		{Destination: header.IPv6EmptySubnet, NIC: nic},
	})
	return nil
}

// inspect reports whether the stack must not see a packet. It handles ICMP itself, because
// the stack would answer echo requests to any address. It drops packets that must not be
// answered at all.
func (e *engine) inspect(protocol tcpip.NetworkProtocolNumber, packet *stack.PacketBuffer) bool {
	var source, to netip.Addr
	var next byte
	var fragment bool
	if protocol == header.IPv4ProtocolNumber {
		data, ok := packet.Data().PullUp(header.IPv4MinimumSize)
		if !ok {
			e.Counters.dropped.Add(1)
			return true
		}
		ip := header.IPv4(data)
		source, to, next = address(ip.SourceAddress()), address(ip.DestinationAddress()), ip.Protocol()
		fragment = ip.More() || ip.FragmentOffset() != 0
	} else {
		data, ok := packet.Data().PullUp(header.IPv6MinimumSize)
		if !ok {
			e.Counters.dropped.Add(1)
			return true
		}
		ip := header.IPv6(data)
		source, to, next = address(ip.SourceAddress()), address(ip.DestinationAddress()), ip.NextHeader()
		if next == header.IPv6FragmentHeader {
			if whole, ok := packet.Data().PullUp(header.IPv6MinimumSize + 1); ok {
				next, fragment = whole[header.IPv6MinimumSize], true
			}
		}
	}
	if to.IsLoopback() || to.IsUnspecified() {
		// No kernel sends such packets, so nobody waits for an answer. The stack would
		// drop them too, but log each of them.
		e.Counters.refused.Add(1)
		return true
	}
	if source.IsMulticast() || source.IsUnspecified() || source.IsLoopback() || e.policy.decide(to) == drop {
		e.Counters.dropped.Add(1)
		return true
	}
	switch {
	case protocol == header.IPv4ProtocolNumber && next == byte(header.ICMPv4ProtocolNumber),
		protocol == header.IPv6ProtocolNumber && next == byte(header.ICMPv6ProtocolNumber):
		if fragment {
			e.Counters.dropped.Add(1)
		} else {
			e.handleICMP(protocol, source, to, packet)
		}
		return true
	}
	return false
}

// warnOnce logs a warning about a pod if it is the first with this text.
func (e *engine) warnOnce(text string) {
	if _, known := e.warned.LoadOrStore(text, true); !known {
		e.Log.Warn(text)
	}
}

// warnOfShortage warns the user if a socket could not be opened because there are too
// many, and names the pod with most connections.
func (e *engine) warnOfShortage(err error) {
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
		return
	}
	text := "no file descriptor for a connection of a pod to the outside"
	if most := e.shares.Most(); most.IsValid() {
		text += fmt.Sprintf(": most connections belong to pod %v", most)
	}
	e.warnOnce(text)
}

// workers counts goroutines that the stack starts, so no group can own them.
type workers struct {
	mu     sync.Mutex
	closed bool
	group  sync.WaitGroup
}

// start reports whether a goroutine may begin. If it may, the goroutine must call
// group.Done at its end. After refuse, start returns false.
func (w *workers) start() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return false
	}
	w.group.Add(1)
	return true
}

func (w *workers) refuse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

func (w *workers) wait() { w.group.Wait() }

// address and stackAddress convert between the two types of an IP address.
func address(a tcpip.Address) netip.Addr {
	addr, _ := netip.AddrFromSlice(a.AsSlice())
	return addr
}

func stackAddress(a netip.Addr) tcpip.Address { return tcpip.AddrFromSlice(a.AsSlice()) }

func networkOf(a netip.Addr) tcpip.NetworkProtocolNumber {
	if a.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// endpoints returns both ends of a flow as the pod sees it.
func endpoints(id stack.TransportEndpointID) (pod, remote netip.AddrPort) {
	return netip.AddrPortFrom(address(id.RemoteAddress), id.RemotePort),
		netip.AddrPortFrom(address(id.LocalAddress), id.LocalPort)
}
