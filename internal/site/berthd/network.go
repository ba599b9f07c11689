package berthd

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/site/berthd/gateway"
	"berth.dev/berth/internal/site/nametable"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// kernel configures links, routes and rules; vxlan.Kernel implements it.
type kernel interface {
	Apply(ctx context.Context, s vxlan.State, check bool) error
}

// network brings the kernel, CNI plugins and the name server of this node into the state that
// the pods here need.
type network struct {
	config siteconf.Config
	// host is the address of this node.
	host   netip.Addr
	kernel kernel
	// routed holds the subnets of nodes, or nil.
	routed *vxlan.Routed
	// daemons holds the IDs of the users in Policy.Daemons.
	daemons []uint32
	// led holds the pods that the previous daemon reached, on a host that reaches all pods. They
	// stay until etcd has answered.
	led      []vxlan.Peer
	gateways *gateway.Gateways
	pods     *pods
	watch    *watch
	plugins  *plugins
	// applyNames passes the names of pods to CoreDNS, or ends CoreDNS if the table is nil.
	applyNames func(*nametable.Table) error
	metrics    *metrics
	log        *slog.Logger

	// applying is held while the kernel is changed, so that an older state never replaces a
	// newer one. Every other mutex is taken after it.
	applying sync.Mutex
	// dirty requests another apply. doubted makes the next apply check the whole kernel state.
	dirty   chan struct{}
	doubted atomic.Bool
}

// apply configures the kernel, and only then marks pods as ready. With check it also verifies
// the whole kernel state and calls CHECK of CNI plugins.
func (n *network) apply(ctx context.Context, check bool) error {
	n.applying.Lock()
	defer n.applying.Unlock()
	state, ids := n.state()
	doubted := n.doubted.Swap(false)
	err := n.kernel.Apply(ctx, state, check || doubted)
	if err == nil && n.plugins.cni != nil {
		ids, err = n.plugins.connect(ctx, check)
	}
	if err == nil {
		err = n.applyNames(n.pods.table())
	}
	if err != nil {
		n.metrics.fail()
		return err
	}
	n.pods.mu.Lock()
	defer n.pods.mu.Unlock()
	for _, id := range ids {
		if local := n.pods.local[id]; local != nil {
			local.ready = true
		}
	}
	return nil
}

// state returns the desired state of this node, and the IDs of the pods in it.
func (n *network) state() (vxlan.State, []string) {
	n.pods.mu.Lock()
	defer n.pods.mu.Unlock()
	s := vxlan.State{Pods: n.config.Pods, Gateway: n.config.Gateway(), IPv6: n.config.IPv6, Host: n.host, Port: n.config.Tunnel.Port, Daemons: n.daemons, Flows: n.config.Policy.Flows, Names: n.config.DNS.Program != "",
		Hosts: n.config.Hosts, OutsideNetworks: n.config.Gateways.Networks, Forwards: n.gateways.Here(), Interfaces: n.config.Gateways.Interfaces, As: n.config.Gateways.As[n.pods.node], Routed: n.routed}
	networks := map[string]*vxlan.Network{}
	var ids []string
	if n.plugins.cni != nil {
		return s, nil
	}
	var here []netip.Addr
	for _, local := range n.pods.local {
		if pod, _ := local.On(n.pods.node); pod.Address.IsValid() {
			here = append(here, pod.Address)
		}
	}
	through := n.gateways.Assign(here)
	if len(here) > 0 {
		s.Gateways = n.gateways.All()
	}
	for id, local := range n.pods.local {
		pod, _ := local.On(n.pods.node)
		if !pod.Address.IsValid() {
			local.problem = fmt.Errorf("connect %s: it has no address, as it began while plugins gave addresses ('cni'): end it, and submit it again", id)
			continue
		}
		user := networks[local.Owner()]
		if user == nil {
			user = &vxlan.Network{VNI: local.VNI}
			networks[local.Owner()] = user
		}
		user.Own(n.owner(local.Allocation))
		user.Local = append(user.Local, vxlan.Pod{Address: pod.Address, Owner: local.UID, Namespace: n.pods.namespace(id), Gateway: through[pod.Address], Unmarked: local.unmarked})
		ids = append(ids, id)
	}
	for owner, user := range networks {
		user.Peers = n.peers(owner)
		s.Networks = append(s.Networks, *user)
	}
	if all, known := n.watch.all(); known {
		for _, a := range all {
			s.Outside = append(s.Outside, n.others(a)...)
		}
	} else {
		s.Outside = slices.Clone(n.led)
	}
	s.Sort()
	return s, ids
}

// owner returns the user of a pod, with the site's rules for connections.
func (n *network) owner(a siteconf.Allocation) vxlan.Owner {
	rules := n.config.Policy.Users[a.User]
	return vxlan.Owner{
		UID:     a.UID,
		Egress:  slices.Concat(n.config.Policy.Egress, rules.Egress),
		Ingress: slices.Concat(n.config.Policy.Ingress, rules.Ingress),
	}
}

// peers returns the pods of a network on other nodes.
func (n *network) peers(owner string) []vxlan.Peer {
	var peers []vxlan.Peer
	for _, a := range n.pods.known(owner) {
		peers = append(peers, n.others(a)...)
	}
	return peers
}

// others returns the pods of a job on other nodes that have an address.
func (n *network) others(a siteconf.Allocation) []vxlan.Peer {
	var peers []vxlan.Peer
	for _, pod := range a.Pods {
		if pod.Node != n.pods.node && pod.Address.IsValid() {
			peers = append(peers, vxlan.Peer{Address: pod.Address, Via: pod.Via})
		}
	}
	return peers
}

// reconcile applies the state after each change elsewhere, and once a minute with check, in
// case somebody has removed berthd's links or rules.
func (n *network) reconcile(ctx context.Context) error {
	ticker := time.NewTicker(time.Minute)
	defer ticker.Stop()
	for {
		check := false
		select {
		case <-ctx.Done():
			return nil
		case <-n.dirty:
		case <-ticker.C:
			check = true
		}
		if err := n.apply(ctx, check); err != nil && ctx.Err() == nil {
			n.log.Error("bring the network of this node up to date", "error", err)
		}
	}
}

// touch requests another apply from reconcile. It does not block.
func (n *network) touch() {
	select {
	case n.dirty <- struct{}{}:
	default:
	}
}

// settle waits until plugins have finished with a pod.
func (n *network) settle(ctx context.Context, id string) error {
	for n.plugins.cni != nil {
		if err := n.plugins.settled(ctx, id); err != nil {
			return err
		}
		// The goroutine that collected the outcome may not have configured names yet,
		// or may have failed to. This step must learn of that too.
		if err := n.apply(ctx, false); err != nil {
			return err
		}
		if !n.plugins.isPending(id) {
			break
		}
	}
	return nil
}

// startTimeout bounds the time that a new daemon waits for plugins before it accepts
// requests. Once plugins have confirmed that a pod is connected, steps of its job need no
// request to etcd.
const startTimeout = 2 * time.Second

// firstSettled waits for the plugins of all pods at start, when no other goroutine
// calls them yet. It does not wait for plugins that hang.
func (n *network) firstSettled(ctx context.Context) error {
	enough := time.NewTimer(startTimeout)
	defer enough.Stop()
	defer n.touch()
	for n.plugins.anyPending() {
		select {
		case <-n.dirty:
			if err := n.apply(ctx, false); err != nil {
				return err
			}
		case <-enough.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}
