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
	if len(offers) > maxNodes {
		return nil, fmt.Errorf("design a cluster of %d nodes: %d is the most", len(offers), maxNodes)
	}
	block, layout, err := chooseBlock(spec, offers)
	if err != nil {
		return nil, err
	}
	ula, withoutIPv6, err := chooseIPv6(spec, offers)
	if err != nil {
		return nil, err
	}
	controls := 1
	if spec.HighlyAvailable {
		controls = ControlNodes
	}
	if len(offers) < controls {
		return nil, fmt.Errorf("design a cluster of %d nodes: %w", len(offers), ErrTooFewNodes)
	}
	registries, mtu := registriesOf(spec), podMTU(offers)
	plans := make([]Plan, len(offers))
	members := make([]Member, len(offers))
	names := nodeNames(offers)
	for i, offer := range offers {
		offer.Node.Name = names[i]
		offer.Node.MaxPods = min(offer.Node.MaxPods, layout.pods())
		if spec.PodsPerNode > 0 {
			offer.Node.MaxPods = min(offer.Node.MaxPods, spec.PodsPerNode)
		}
		addresses := layout.addresses(block, i)
		addresses.HostAPIPort = offer.HostAPIPort
		if controls > 1 {
			addresses.APIBalancer = balancerAddress()
		}
		addresses.WithoutIPv6 = withoutIPv6
		if ula.IsValid() {
			addresses.IPv6 = ipv6In(ula, i)
		}
		members[i] = Member{Name: offer.Node.Name, Host: offer.Host, Address: addresses.Node, Prefixes: prefixesTo(addresses)}
		plans[i] = Plan{
			RunID:             offer.RunID,
			KubernetesVersion: KubernetesVersion,
			Node:              offer.Node,
			Index:             i,
			Members:           members,
			Controls:          controls,
			Addresses:         addresses,
			Paths:             offer.Paths,
			OneUID:            offer.OneUID,
			CgroupsDelegated:  offer.CgroupsDelegated,
			FastPath:          offer.FastPath,
			Snapshotter:       offer.Snapshotter,
			PodMTU:            mtu,
			ImageCache:        imageCacheOf(spec, offer),
			ImageBudget:       max(1, spec.ImageBudget),
			LazyPull:          spec.LazyPull,
			Registries:        registries,
			SharedVolumes:     spec.SharedVolumes,
			Mounts:            mountsOf(spec),
			ForeignOwners:     spec.ForeignOwners,
		}
	}
	return plans, nil
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
	l, err := layoutFor(len(offers), spec.PodsPerNode, named)
	if err != nil || named.IsValid() {
		return named, l, err
	}
	var used []netip.Prefix
	for _, offer := range offers {
		used = append(used, offer.Used...)
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
