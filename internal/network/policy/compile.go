package policy

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// objects holds the objects of the API that compile reads.
type objects struct {
	Policies    []*networkingv1.NetworkPolicy
	Pods        []*corev1.Pod
	Namespaces  []*corev1.Namespace
	VirtualPods []VirtualPod
}

// VirtualPod is a process on the nodes that is a pod in other clusters. Policies select
// it by labels, as they would select the pod.
type VirtualPod struct {
	Namespace string
	Labels    map[string]string
	Addresses []netip.Addr
	// Ports are the ports of this process. Others may use the same addresses.
	Ports []Ports
}

// ClusterDNS returns a VirtualPod with the labels that CoreDNS has in other clusters.
func ClusterDNS(address netip.Addr) VirtualPod {
	return VirtualPod{
		Namespace: metav1.NamespaceSystem, Labels: map[string]string{"k8s-app": "kube-dns"},
		Addresses: []netip.Addr{address},
		Ports:     []Ports{{UDP, 53, 53}, {TCP, 53, 53}, {TCP, 9153, 9153}},
	}
}

// compile returns the State that the objects describe. They must come from the API server,
// which validates them and fills in defaults.
func compile(o objects) *State {
	c := compiler{
		namespaces:  map[string]labels.Set{},
		known:       map[string]int{},
		found:       map[string]*meant{},
		virtualPods: o.VirtualPods,
	}
	for _, n := range o.Namespaces {
		c.namespaces[n.Name] = n.Labels
	}
	for _, p := range o.Pods {
		if addresses := addressesOf(p); len(addresses) > 0 {
			c.pods = append(c.pods, &pod{Pod: p, addresses: addresses})
		}
	}
	// The same objects make the same State in any order. Of two pods with one
	// address, the older one is about to be deleted, so the younger one wins.
	slices.SortFunc(c.pods, func(a, b *pod) int {
		return cmp.Or(a.addresses[0].Compare(b.addresses[0]), a.CreationTimestamp.Compare(b.CreationTimestamp.Time))
	})
	policies := slices.SortedFunc(slices.Values(o.Policies), func(a, b *networkingv1.NetworkPolicy) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	if len(policies) == 0 {
		return &State{}
	}
	for _, policy := range policies {
		c.add(policy)
	}
	s := &State{Pods: map[netip.Addr]Pod{}, Peers: c.peers}
	for _, p := range c.pods {
		for _, address := range p.addresses {
			s.Pods[address] = Pod{UID: p.UID, Node: p.Spec.NodeName, Ingress: p.ingress, Egress: p.egress}
		}
	}
	return s
}

// addressesOf returns the addresses that only this pod has. The addresses of a pod
// that has ended may already belong to another one.
func addressesOf(p *corev1.Pod) []netip.Addr {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	var addresses []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if address, err := netip.ParseAddr(ip.IP); err == nil {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

type pod struct {
	*corev1.Pod
	addresses       []netip.Addr
	ingress, egress *Isolation
}

type compiler struct {
	pods        []*pod
	namespaces  map[string]labels.Set
	virtualPods []VirtualPod
	peers       []Ranges
	known       map[string]int    // indexes into peers, by the bytes of the ranges
	found       map[string]*meant // by namespace and JSON of the peers
}

// add adds a policy to the pods that it selects.
func (c *compiler) add(policy *networkingv1.NetworkPolicy) {
	selects := selector(&policy.Spec.PodSelector)
	var selected []*pod
	for _, p := range c.pods {
		if p.Namespace == policy.Namespace && selects.Matches(labels.Set(p.Labels)) {
			selected = append(selected, p)
		}
	}
	if len(selected) == 0 {
		return
	}
	ingress, egress := directions(policy.Spec)
	if egress {
		// Ports of egress rules are ports of the peers, so all selected pods have
		// the same rules.
		rules := c.egress(policy)
		for _, p := range selected {
			p.egress = p.egress.and(rules)
		}
	}
	if ingress {
		c.ingress(policy, selected)
	}
}

// directions reports whether a policy isolates pods for ingress and egress.
func directions(spec networkingv1.NetworkPolicySpec) (ingress, egress bool) {
	if len(spec.PolicyTypes) == 0 {
		return true, len(spec.Egress) > 0
	}
	return slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeIngress),
		slices.Contains(spec.PolicyTypes, networkingv1.PolicyTypeEgress)
}

// and adds rules to an isolation, and returns it. It creates the isolation if i is nil.
func (i *Isolation) and(rules []Rule) *Isolation {
	if i == nil {
		i = &Isolation{}
	}
	i.Rules = append(i.Rules, rules...)
	return i
}

func (c *compiler) ingress(policy *networkingv1.NetworkPolicy, selected []*pod) {
	for _, p := range selected {
		p.ingress = p.ingress.and(nil)
	}
	for _, rule := range policy.Spec.Ingress {
		peers := anybody
		if len(rule.From) > 0 {
			peers = c.find(policy.Namespace, rule.From).index
		}
		numbered, named := split(rule.Ports)
		for _, p := range selected {
			ports := slices.Clone(numbered)
			for _, name := range named {
				ports = append(ports, portsNamed(p.Pod, name)...)
			}
			// A rule permits nothing if the pod has no port of these names.
			if len(ports) > 0 || len(rule.Ports) == 0 {
				p.ingress = p.ingress.and([]Rule{{peers, ports}})
			}
		}
	}
}

func (c *compiler) egress(policy *networkingv1.NetworkPolicy) []Rule {
	var rules []Rule
	for _, rule := range policy.Spec.Egress {
		numbered, named := split(rule.Ports)
		peers, destinations := anybody, &meant{pods: c.pods}
		if len(rule.To) > 0 {
			destinations = c.find(policy.Namespace, rule.To)
			peers = destinations.index
		}
		if len(rule.Ports) == 0 || len(numbered) > 0 {
			rules = append(rules, Rule{peers, numbered})
		}
		for _, s := range destinations.virtualPods {
			ports := s.Ports
			if len(rule.Ports) > 0 {
				ports = common(numbered, s.Ports)
			}
			if len(ports) > 0 {
				rules = append(rules, Rule{c.intern(rangesOf(s.Addresses)), ports})
			}
		}
		rules = append(rules, c.byName(named, destinations)...)
	}
	return rules
}

// byName returns rules for named ports, whose numbers depend on the destination.
func (c *compiler) byName(named []networkingv1.NetworkPolicyPort, destinations *meant) []Rule {
	if len(named) == 0 {
		return nil
	}
	having := map[Ports][]netip.Addr{}
	for _, p := range c.pods {
		if !slices.Contains(destinations.pods, p) && !slices.ContainsFunc(p.addresses, destinations.blocks.contain) {
			continue
		}
		for _, name := range named {
			for _, ports := range portsNamed(p.Pod, name) {
				having[ports] = append(having[ports], p.addresses...)
			}
		}
	}
	var rules []Rule
	for _, ports := range slices.SortedFunc(maps.Keys(having), comparePorts) {
		rules = append(rules, Rule{c.intern(rangesOf(having[ports])), []Ports{ports}})
	}
	return rules
}

// meant holds everything that the peers of a rule select.
type meant struct {
	pods        []*pod
	blocks      Ranges
	virtualPods []VirtualPod
	// index refers to the addresses of pods and blocks. Virtual pods need separate
	// rules, because a rule must not permit other ports of their addresses.
	index int
}

// find resolves peers. It caches the result for other rules with the same peers.
func (c *compiler) find(namespace string, peers []networkingv1.NetworkPolicyPeer) *meant {
	text, _ := json.Marshal(peers) // strings always encode
	key := namespace + " " + string(text)
	f := c.found[key]
	if f == nil {
		f = c.look(namespace, peers)
		c.found[key] = f
	}
	return f
}

func (c *compiler) look(namespace string, peers []networkingv1.NetworkPolicyPeer) *meant {
	f := &meant{}
	var matches []func(in string, of map[string]string) bool
	for _, peer := range peers {
		if peer.IPBlock != nil {
			f.blocks = append(f.blocks, addressesOfBlock(peer.IPBlock)...)
		} else {
			matches = append(matches, c.matcher(namespace, peer))
		}
	}
	f.blocks = f.blocks.normal()
	matching := func(in string, of map[string]string) bool {
		return slices.ContainsFunc(matches, func(m func(string, map[string]string) bool) bool { return m(in, of) })
	}
	for _, p := range c.pods {
		if matching(p.Namespace, p.Labels) {
			f.pods = append(f.pods, p)
		}
	}
	for _, s := range c.virtualPods {
		if matching(s.Namespace, s.Labels) {
			f.virtualPods = append(f.virtualPods, s)
		}
	}
	var addresses []netip.Addr
	for _, p := range f.pods {
		addresses = append(addresses, p.addresses...)
	}
	f.index = c.intern(append(rangesOf(addresses), f.blocks...).normal())
	return f
}

// matcher returns a function that reports whether a peer selects a pod by its
// namespace and labels. A missing namespace selector selects the policy's namespace,
// and a missing pod selector selects all pods.
func (c *compiler) matcher(namespace string, peer networkingv1.NetworkPolicyPeer) func(string, map[string]string) bool {
	pods, namespaces := labels.Everything(), labels.Selector(nil)
	if peer.PodSelector != nil {
		pods = selector(peer.PodSelector)
	}
	if peer.NamespaceSelector != nil {
		namespaces = selector(peer.NamespaceSelector)
	}
	return func(in string, of map[string]string) bool {
		if namespaces == nil && in != namespace || namespaces != nil && !namespaces.Matches(c.namespaces[in]) {
			return false
		}
		return pods.Matches(labels.Set(of))
	}
}

// intern returns the index of a set of addresses in peers, and adds the set if it is new.
func (c *compiler) intern(ranges Ranges) int {
	var key []byte
	for _, r := range ranges {
		key = append(key, byte(r.First.BitLen()))
		key = append(append(key, r.First.AsSlice()...), r.Last.AsSlice()...)
	}
	index, ok := c.known[string(key)]
	if !ok {
		index = len(c.peers)
		c.known[string(key)] = index
		c.peers = append(c.peers, ranges)
	}
	return index
}

// addressesOfBlock returns the addresses of a block without its exceptions. It returns nil
// for a block that it cannot parse, so that the rule permits nothing.
func addressesOfBlock(b *networkingv1.IPBlock) Ranges {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil
	}
	var except []netip.Prefix
	for _, text := range b.Except {
		hole, err := netip.ParsePrefix(text)
		if err != nil {
			return nil
		}
		except = append(except, hole)
	}
	return block(cidr, except)
}

// selector parses s. An invalid selector matches nothing.
func selector(s *metav1.LabelSelector) labels.Selector {
	found, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return labels.Nothing()
	}
	return found
}
