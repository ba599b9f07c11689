package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/kubernetes/pkg/proxy"
	"k8s.io/kubernetes/pkg/proxy/apis"
	proxyapi "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/metaproxier"
	"k8s.io/kubernetes/pkg/proxy/metrics"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"

	"berth.dev/berth/internal/base/cluster"
)

const (
	// proxyMinSync is the shortest time between two syncs of changed Services. Each sync
	// runs nft once.
	proxyMinSync = 50 * time.Millisecond
	// proxyRetry is the time until a failed sync is repeated.
	proxyRetry = 5 * time.Second
	// proxyMasqueradeBit is upstream's default bit of the packet mark.
	proxyMasqueradeBit = 14
	// proxyStuck limits how long a change may wait before the proxy counts as
	// hung.
	proxyStuck = time.Minute
)

// serviceProxy is kube-proxy: upstream's nftables proxier with informers of
// berth's own. It does not use upstream's command, which polls for the Node once a
// second before it does anything else, waits for its caches in steps of 100 ms, sets
// conntrack sysctls that a user namespace may not set, and serves unneeded ports.
type serviceProxy struct {
	plan    cluster.Plan
	api     *access
	proxier proxy.Provider
	health  *healthcheck.ProxyHealthServer
	sender  *serviceSender // receives the same changes; nil without a fast path
}

// openServices returns an error unless kube-proxy may read Services. It may once the default
// roles exist.
func openServices(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().Services("").List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("read services as kube-proxy: %w", err)
	}
	return nil
}

func newServiceProxy(ctx context.Context, plan cluster.Plan, api *access) (*serviceProxy, error) {
	metrics.RegisterMetrics(proxyapi.ProxyModeNFTables)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: api.client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, fmt.Errorf("record events of kube-proxy: %w", err)
	}
	// The server does not listen, but the health checks of Services need it.
	health := healthcheck.NewProxyHealthServer("", proxyStuck, noNode{})
	recorder := broadcaster.NewRecorder(scheme.Scheme, "kube-proxy")
	var proxiers []proxy.Provider
	for _, family := range plan.Addresses.Families() {
		proxier, err := nftables.NewProxier(ctx, v1.IPFamily(family.Name()),
			proxyRetry, proxyMinSync, false, proxyMasqueradeBit,
			newLocalSources(family),
			plan.Node.Name, family.Node.AsSlice(), recorder, health,
			[]string{netip.PrefixFrom(family.Node, family.Node.BitLen()).String()}, false)
		if err != nil {
			return nil, fmt.Errorf("make the nftables proxy (%s, nft in %s): %w", family.Name(), plan.Paths.Libexec, err)
		}
		proxiers = append(proxiers, proxier)
	}
	if len(proxiers) > 1 {
		return &serviceProxy{plan: plan, api: api, proxier: metaproxier.NewMetaProxier(proxiers[0], proxiers[1]), health: health}, nil
	}
	return &serviceProxy{plan: plan, api: api, proxier: proxiers[0], health: health}, nil
}

// localSources lists the sources whose connections to Services are not
// masqueraded: pods, and this node. Answers come back to the node anyway.
// Masquerading would reuse a port for another connection, whose server may
// remember the former connection and ignore the first SYN: two of 10,000
// connections took a second longer.
type localSources struct {
	proxyutil.LocalTrafficDetector
	header, set string
}

func newLocalSources(family cluster.Family) localSources {
	header := "ip"
	if family.Node.Is6() {
		header = "ip6"
	}
	return localSources{
		proxyutil.NewDetectLocalByCIDR(family.Pods.String()), header,
		"{ " + family.Pods.String() + ", " + family.Node.String() + " }",
	}
}

// IfNotLocalNFT matches connections that are masqueraded.
func (l localSources) IfNotLocalNFT() []string { return []string{l.header, "saddr", "!=", l.set} }

// noNode provides no Node for a health endpoint that is not served.
type noNode struct{}

func (noNode) Node() *v1.Node { return nil }

// start starts the proxy, and returns when the rules for all present Services are in
// force. It returns an error if the kernel refuses them, and nil if ctx ends before. The
// proxy runs until the process ends, because upstream's loop cannot be stopped.
func (p *serviceProxy) start(ctx context.Context, nodes informers.SharedInformerFactory) error {
	services := informers.NewSharedInformerFactoryWithOptions(p.api.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = "!" + apis.LabelServiceProxyName
			o.FieldSelector = "spec.clusterIP!=" + v1.ClusterIPNone
		}))
	slices := informers.NewSharedInformerFactoryWithOptions(p.api.client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = "!" + v1.IsHeadlessService
		}))
	others := informers.NewSharedInformerFactory(p.api.client, 0)

	// Set the ranges of the plan, so that no rule waits for the ServiceCIDR object.
	var ranges []string
	for _, family := range p.plan.Addresses.Families() {
		ranges = append(ranges, family.Services.String())
	}
	p.proxier.OnServiceCIDRsChanged(ranges)
	serviceReg, err1 := services.Core().V1().Services().Informer().AddEventHandler(serviceEvents(p.serviceListeners()...))
	sliceReg, err2 := slices.Discovery().V1().EndpointSlices().Informer().AddEventHandler(sliceEvents(p.serviceListeners()...))
	if err := errors.Join(err1, err2); err != nil {
		return fmt.Errorf("watch services: %w", err)
	}
	cidrs := proxyconfig.NewServiceCIDRConfig(ctx, others.Networking().V1().ServiceCIDRs(), 0)
	cidrs.RegisterEventHandler(p.proxier)
	topology := proxyconfig.NewNodeTopologyConfig(ctx, nodes.Core().V1().Nodes(), 0)
	topology.RegisterEventHandler(p.proxier)
	if p.sender != nil {
		topology.RegisterEventHandler(p.sender)
	}
	for _, f := range []informers.SharedInformerFactory{services, slices, others, nodes} {
		f.Start(ctx.Done())
	}
	go cidrs.Run(ctx.Done())

	for _, synced := range []cache.DoneChecker{serviceReg.HasSyncedChecker(), sliceReg.HasSyncedChecker()} {
		select {
		case <-synced.Done():
		case <-ctx.Done():
			return nil
		}
	}
	// The second of these calls writes the rules to the kernel.
	p.proxier.OnServiceSynced()
	p.proxier.OnEndpointSlicesSynced()
	done := p.health.Health().Status
	if _, ok := done[v1.IPv4Protocol]; !ok {
		return errors.New("program nftables rules: nft refused them, and its messages are in the log above; " +
			"the kernel needs nf_tables with nat, fib, masquerade and numgen, and may need modprobe of them by an administrator")
	}
	if len(done) < len(p.plan.Addresses.Families()) {
		return errors.New("program nftables rules for IPv6: nft refused them, and its messages are in the log above; " +
			"the kernel may need 'modprobe -a nft_fib_ipv6 nft_reject_ipv6' by an administrator; --ip-family ipv4 does without")
	}
	if p.sender != nil {
		p.sender.OnServiceSynced()
	}
	go p.proxier.SyncLoop()
	return nil
}

// healthy returns an error if changes of Services have waited longer than proxyStuck.
func (p *serviceProxy) healthy() error {
	if h := p.health.Health(); !h.Healthy {
		return fmt.Errorf("sync services: nothing written since %s", h.LastUpdated)
	}
	return nil
}

// serviceListener receives the API server's changes of Services.
type serviceListener interface {
	proxyconfig.ServiceHandler
	proxyconfig.EndpointSliceHandler
}

func (p *serviceProxy) serviceListeners() []serviceListener {
	if p.sender == nil {
		return []serviceListener{p.proxier}
	}
	return []serviceListener{p.proxier, p.sender}
}

func serviceEvents(all ...serviceListener) cache.ResourceEventHandler {
	each := func(call func(serviceListener)) {
		for _, h := range all {
			call(h)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) { each(func(h serviceListener) { h.OnServiceAdd(o.(*v1.Service)) }) },
		UpdateFunc: func(old, o any) {
			each(func(h serviceListener) { h.OnServiceUpdate(old.(*v1.Service), o.(*v1.Service)) })
		},
		DeleteFunc: func(o any) {
			if s, ok := deleted[*v1.Service](o); ok {
				each(func(h serviceListener) { h.OnServiceDelete(s) })
			}
		},
	}
}

func sliceEvents(all ...serviceListener) cache.ResourceEventHandler {
	type slice = *discoveryv1.EndpointSlice
	each := func(call func(serviceListener)) {
		for _, h := range all {
			call(h)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { each(func(h serviceListener) { h.OnEndpointSliceAdd(o.(slice)) }) },
		UpdateFunc: func(old, o any) { each(func(h serviceListener) { h.OnEndpointSliceUpdate(old.(slice), o.(slice)) }) },
		DeleteFunc: func(o any) {
			if s, ok := deleted[slice](o); ok {
				each(func(h serviceListener) { h.OnEndpointSliceDelete(s) })
			}
		},
	}
}

// deleted returns the object of a deletion event. If the informer missed the deletion, the
// event contains the object's last known state. ok is false for other types.
func deleted[T any](object any) (T, bool) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	t, ok := object.(T)
	return t, ok
}
