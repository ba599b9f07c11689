package node

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"

	"berth.dev/berth/internal/network/policy"
	"berth.dev/berth/internal/network/servicemap"
)

// sendMerge is the shortest time between two messages, so that one message has several
// changes.
const sendMerge = 20 * time.Millisecond

// serviceSender sends the net role the endpoints of each Service, and the state of network
// policies. It receives the same events as kube-proxy, and selects endpoints with
// kube-proxy's code.
type serviceSender struct {
	node string
	conn *servicemap.Conn
	// dirty holds a value if there are changes to send.
	dirty chan struct{}

	families []*tracked

	mu       sync.Mutex
	topology map[string]string
	synced   bool
	policy   *policy.State
}

// tracked holds the Services of one address family.
type tracked struct {
	services  *proxy.ServiceChangeTracker
	endpoints *proxy.EndpointsChangeTracker
	// The state from the trackers; only run uses it.
	ports   proxy.ServicePortMap
	backing proxy.EndpointsMap
}

func newServiceSender(node string, conn *servicemap.Conn) *serviceSender {
	t := &serviceSender{node: node, conn: conn, dirty: make(chan struct{}, 1)}
	// In a cluster without IPv6, the second family has no Services.
	for _, family := range []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol} {
		t.families = append(t.families, &tracked{
			services:  proxy.NewServiceChangeTracker(family, nil, nil),
			endpoints: proxy.NewEndpointsChangeTracker(family, node, nil, nil),
			ports:     proxy.ServicePortMap{}, backing: proxy.EndpointsMap{},
		})
	}
	return t
}

// kube-proxy's informers report changes by these methods.

func (t *serviceSender) OnServiceAdd(s *v1.Service) { t.OnServiceUpdate(nil, s) }
func (t *serviceSender) OnServiceDelete(s *v1.Service) {
	t.OnServiceUpdate(s, nil)
}

func (t *serviceSender) OnServiceUpdate(old, s *v1.Service) {
	for _, f := range t.families {
		if f.services.Update(old, s) {
			t.mark()
		}
	}
}

func (t *serviceSender) OnServiceSynced() { t.set(func() { t.synced = true }) }

func (t *serviceSender) OnEndpointSliceAdd(s *discoveryv1.EndpointSlice) { t.slice(s, false) }
func (t *serviceSender) OnEndpointSliceUpdate(_, s *discoveryv1.EndpointSlice) {
	t.slice(s, false)
}
func (t *serviceSender) OnEndpointSliceDelete(s *discoveryv1.EndpointSlice) { t.slice(s, true) }
func (t *serviceSender) OnEndpointSlicesSynced()                            {}

func (t *serviceSender) slice(s *discoveryv1.EndpointSlice, gone bool) {
	for _, f := range t.families {
		if f.endpoints.EndpointSliceUpdate(s, gone) {
			t.mark()
		}
	}
}

// OnTopologyChange implements config.NodeTopologyHandler.
func (t *serviceSender) OnTopologyChange(labels map[string]string) {
	t.set(func() { t.topology = labels })
}

// permit replaces the state of network policies.
func (t *serviceSender) permit(s *policy.State) { t.set(func() { t.policy = s }) }

func (t *serviceSender) set(change func()) {
	t.mu.Lock()
	change()
	t.mu.Unlock()
	t.mark()
}

func (t *serviceSender) mark() {
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}

// run sends changes until ctx ends.
func (t *serviceSender) run(ctx context.Context) error {
	for {
		select {
		case <-t.dirty:
		case <-ctx.Done():
			return nil
		}
		if state := t.state(); state != nil {
			if err := t.conn.Send(state); err != nil {
				return unlessDone(ctx, err)
			}
		}
		select {
		case <-time.After(sendMerge):
		case <-ctx.Done():
			return nil
		}
	}
}

// state returns the state to send, or nil until Services and policies are known.
func (t *serviceSender) state() *servicemap.State {
	t.mu.Lock()
	topology, synced, policies := t.topology, t.synced, t.policy
	t.mu.Unlock()
	if !synced || policies == nil {
		return nil
	}
	s := &servicemap.State{Services: map[netip.AddrPort]servicemap.Service{}, Policy: policies}
	for _, f := range t.families {
		f.ports.Update(f.services)
		f.backing.Update(f.endpoints)
		for name, port := range f.ports {
			s.External = append(append(s.External, addressesOf(port.ExternalIPs())...), addressesOf(port.LoadBalancerVIPs())...)
			address, ok := netip.AddrFromSlice(port.ClusterIP())
			if !ok || port.Protocol() != v1.ProtocolTCP {
				continue
			}
			endpoints, local, _, _ := proxy.CategorizeEndpoints(f.backing[name], port, t.node, topology)
			if port.InternalPolicyLocal() {
				endpoints = local
			}
			if service := serviceOf(port, endpoints); len(service.Endpoints) > 0 {
				s.Services[netip.AddrPortFrom(address.Unmap(), uint16(port.Port()))] = service
			}
		}
	}
	return s
}

func addressesOf(ips []net.IP) (all []netip.Addr) {
	for _, ip := range ips {
		if address, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, address.Unmap())
		}
	}
	return all
}

// serviceOf returns a Service for the net role. It has no endpoints if the address of one
// of them cannot be parsed.
func serviceOf(port proxy.ServicePort, endpoints []proxy.Endpoint) (s servicemap.Service) {
	for _, e := range endpoints {
		address, err := netip.ParseAddr(e.IP())
		if err != nil {
			return servicemap.Service{}
		}
		s.Endpoints = append(s.Endpoints, netip.AddrPortFrom(address, uint16(e.Port())))
	}
	if port.SessionAffinityType() == v1.ServiceAffinityClientIP {
		s.Sticky = time.Duration(port.StickyMaxAgeSeconds()) * time.Second
	}
	return s
}

// answer handles the requests of a net role that has just started, until ctx ends: it
// sends the state again, and calls replace with the addresses of pods whose system calls
// the new net role cannot answer.
func (t *serviceSender) answer(ctx context.Context, replace func(context.Context, []netip.Addr)) error {
	stop := context.AfterFunc(ctx, func() { t.conn.Close() })
	defer stop()
	for {
		lost, err := t.conn.AwaitRequest()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return unlessDone(ctx, err)
		}
		t.mark()
		if len(lost) > 0 {
			replace(ctx, lost)
		}
	}
}
