package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Offer describes one node that joins a cluster.
type Offer struct {
	Node Node
	// Host is the name of the machine in Slurm's configuration, for messages.
	Host string
	// RunID is Plan.RunID of this node.
	RunID string
	Paths Paths
	// Used lists the destinations of the host's routes.
	Used []netip.Prefix
	// OneUID, CgroupsDelegated and Snapshotter are as in Plan.
	OneUID, CgroupsDelegated bool
	Snapshotter              string
	// ImageCache is the path of the image cache on this node; empty if it has none.
	ImageCache string
	// SubIDs describes the mapping of user and group ids in containers to ids of the
	// machine. Two nodes with the same text have the same mapping.
	SubIDs string
	// FastPath is true if this node has a Switch.
	FastPath bool
	// OverlayMTU is the size in bytes of the largest packet that this node can send
	// to another node; 0 on a single node.
	OverlayMTU int
	// IPv6 is the reach of IPv6 packets from this node. RefusedIPv6 is the reason
	// why Services cannot have IPv6 addresses here; "" if they can.
	IPv6        Reach
	RefusedIPv6 string
	// HostAPIPort is the API server's port on the host's loopback; 0 for a node
	// without an API server.
	HostAPIPort uint16
}

// Member is one node of a cluster as all others know it.
type Member struct {
	// Name is the Kubernetes node name. Host is the name of the machine.
	Name, Host string
	// Address is the node's IPv4 address.
	Address netip.Addr
	// Prefixes lists the destinations of the routes to the node: for each IP family,
	// the range of its pods and its own address.
	Prefixes []netip.Prefix
}

// ControlNodes is the number of control planes in a run that survives the loss
// of one: with three, two are a majority.
const ControlNodes = 3

// ErrTooFewNodes is the error for a run with --ha on fewer than ControlNodes nodes.
var ErrTooFewNodes = fmt.Errorf("--ha needs %d nodes, because %d must continue when one is lost; request them from Slurm with -N%[1]d, or try it on one machine with --nodes-per-host %[1]d", ControlNodes, ControlNodes-1)

// errNoAddresses is the error if no IPv4 block is free on all nodes.
var errNoAddresses = errors.New("the routes of the nodes cover every private range")

// Design makes the plan of every node of a cluster, in the order of the offers. The
// first node is the head, which runs a control plane. Design returns an error if
// there are too many or too few nodes, or if no range of addresses is free on all
// of them.
func Design(spec Spec, offers []Offer) ([]Plan, error) {
	d, err := newDesign(spec, offers)
	if err != nil {
		return nil, err
	}
	plans := make([]Plan, len(offers))
	for i, offer := range offers {
		plans[i] = d.plan(i, d.members[i].Name, offer)
	}
	return plans, nil
}

// design holds what the plans of a cluster have in common.
type design struct {
	spec        Spec
	block, ula  netip.Prefix // ula is invalid if the cluster has only IPv4
	layout      layout
	withoutIPv6 string
	controls    int
	mtu         int
	// members are the places of the nodes.
	members []Member
}

func newDesign(spec Spec, offers []Offer) (d design, err error) {
	d.spec, d.mtu, d.controls = spec, podMTU(offers), 1
	places := len(offers) + spec.Seats
	if places > maxNodes {
		return d, fmt.Errorf("design a cluster of %d nodes: %d is the most", places, maxNodes)
	}
	if d.block, d.layout, err = chooseBlock(spec, offers); err != nil {
		return d, err
	}
	if d.ula, d.withoutIPv6, err = chooseIPv6(spec, offers); err != nil {
		return d, err
	}
	if spec.HighlyAvailable {
		d.controls = ControlNodes
	}
	if len(offers) < d.controls {
		return d, fmt.Errorf("design a cluster of %d nodes: %w", len(offers), ErrTooFewNodes)
	}
	names := nodeNames(offers)
	for i, offer := range offers {
		member := d.addresses(0).place(i)
		member.Name, member.Host = names[i], offer.Host
		d.members = append(d.members, member)
	}
	return d, nil
}

func (d design) addresses(index int) Addresses {
	addresses := d.layout.addresses(d.block, index)
	if d.controls > 1 {
		addresses.APIBalancer = balancerAddress()
	}
	addresses.WithoutIPv6 = d.withoutIPv6
	if d.ula.IsValid() {
		addresses.IPv6 = ipv6In(d.ula, index)
	}
	return addresses
}

// plan returns the plan of the node with an index.
func (d design) plan(index int, name string, offer Offer) Plan {
	node, spec := offer.Node, d.spec
	node.Name = name
	node.MaxPods = min(node.MaxPods, d.layout.pods())
	if spec.PodsPerNode > 0 {
		node.MaxPods = min(node.MaxPods, spec.PodsPerNode)
	}
	addresses := d.addresses(index)
	addresses.HostAPIPort = offer.HostAPIPort
	return Plan{
		RunID:             offer.RunID,
		KubernetesVersion: KubernetesVersion,
		Node:              node,
		Index:             index,
		Members:           d.members,
		Seats:             spec.Seats,
		Controls:          d.controls,
		Addresses:         addresses,
		Paths:             offer.Paths,
		OneUID:            offer.OneUID,
		CgroupsDelegated:  offer.CgroupsDelegated,
		FastPath:          offer.FastPath,
		Snapshotter:       offer.Snapshotter,
		PodMTU:            d.mtu,
		ImageCache:        imageCacheOf(spec, offer),
		ImageBudget:       max(1, spec.ImageBudget),
		LazyPull:          spec.LazyPull,
		Registries:        registriesOf(spec),
		SharedVolumes:     spec.SharedVolumes,
		Mounts:            mountsOf(spec),
		ForeignOwners:     spec.ForeignOwners,
	}
}

// UnlikeOwners returns a warning about the nodes whose subordinate ids differ from the
// head's, because files of shared volumes then have other owners there. It returns ""
// if there are no such nodes, or no shared volumes.
func UnlikeOwners(spec Spec, offers []Offer) string {
	var unlike []string
	for _, offer := range offers[1:] {
		if spec.SharedVolumes != "" && offer.SubIDs != offers[0].SubIDs {
			unlike = append(unlike, offer.Host)
		}
	}
	if len(unlike) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: other subordinate ids than on %s, so files that non-root users of pods there write to shared volumes have another owner on the other nodes; "+
		"make the user's lines in /etc/subuid and /etc/subgid the same on all nodes, or use --one-uid", strings.Join(unlike, ", "), offers[0].Host)
}

// chooseBlock returns an IPv4 block that overlaps no route of any node, and its layout.
// Default routes do not count. It accepts any block that the user names, even one that
// overlaps a route: a route may cover addresses that the site does not use.
func chooseBlock(spec Spec, offers []Offer) (none netip.Prefix, _ layout, err error) {
	var named netip.Prefix
	if spec.AddressBlock != "" {
		if named, err = parseBlock(spec.AddressBlock); err != nil {
			return none, layout{}, err
		}
	}
	l, err := layoutFor(len(offers)+spec.Seats, spec.PodsPerNode, named)
	if err != nil || named.IsValid() {
		return named, l, err
	}
	var used []netip.Prefix
	for _, offer := range offers {
		used = append(used, offer.Used...)
	}
	if kept := spec.Kept.IPv4; kept.IsValid() && kept.Bits() == l.blockBits && free(kept, used) {
		return kept, l, nil
	}
	blocks := candidates(l.blockBits)
	i := slices.IndexFunc(blocks, func(block netip.Prefix) bool { return free(block, used) })
	if i < 0 {
		return none, layout{}, fmt.Errorf("choose addresses for pods and Services: %w; name a range that nobody uses with --address-block PREFIX/%d", errNoAddresses, l.blockBits)
	}
	return blocks[i], l, nil
}

// prefixesTo returns the destinations of the routes to the node with these addresses.
func prefixesTo(addresses Addresses) []netip.Prefix {
	var all []netip.Prefix
	for _, f := range addresses.Families() {
		all = append(all, f.NodePods, netip.PrefixFrom(f.Node, f.Node.BitLen()))
	}
	return all
}

// LocalMTU is the size of the largest packet between pods of one node, in bytes. A
// bridge of veth pairs sets no lower limit, and a large packet costs no more than a
// small one. It is a multiple of 8 below the maximum of 65535.
const LocalMTU = 65520

// podMTU returns the smallest MTU of all nodes, so that no packet is fragmented.
func podMTU(offers []Offer) int {
	mtu := LocalMTU
	for _, offer := range offers {
		if offer.OverlayMTU > 0 {
			mtu = min(mtu, offer.OverlayMTU)
		}
	}
	return mtu
}

// parseBlock reads a block of addresses that the user names.
func parseBlock(value string) (netip.Prefix, error) {
	block, err := netip.ParsePrefix(value)
	if err != nil || !block.Addr().Is4() || block.Bits() < leastBits || block.Bits() > mostBits || block.Masked() != block {
		return netip.Prefix{}, fmt.Errorf("address block %q: give an IPv4 prefix of %d to %d bits, such as 100.64.0.0/%d", value, leastBits, mostBits, defaultBlockBits)
	}
	return block, nil
}

// imageCacheOf returns a node's image cache. The nodes of a run, and runs on different
// hosts, may share the folder. Each node records the layers that it uses under its
// own ImageCache.Job.
func imageCacheOf(spec Spec, offer Offer) ImageCache {
	if offer.ImageCache == "" || offer.Snapshotter != EROFS {
		return ImageCache{}
	}
	bytes, _ := spec.ImageCacheBytes() // checked by Validate
	return ImageCache{
		Folder: offer.ImageCache, Job: offer.RunID + "-" + offer.Host, Bytes: bytes,
		// An earlier run may have added the named images with a larger limit.
		KeepNamed: spec.ImageCacheLimit == "",
	}
}

// registriesOf returns the registries of a Spec that has been validated.
func registriesOf(spec Spec) Registries {
	servers := map[string]string{}
	for _, registry := range spec.Registries {
		if name, server, err := splitRegistry(registry); err == nil {
			servers[name] = server
		}
	}
	return Registries{NoPull: spec.NoPull, Mirror: MirrorAddress, Servers: servers}
}
