package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Offer is what one node brings into a cluster: what was found out about it.
type Offer struct {
	Node Node
	// Host is the name of the machine, as Slurm has it, for messages.
	Host string
	// RunID is Plan.RunID of this node.
	RunID string
	Paths Paths
	// Used are the destinations that the host has routes for.
	Used []netip.Prefix
	// OneUID, CgroupsDelegated and Snapshotter are as in Plan.
	OneUID, CgroupsDelegated bool
	Snapshotter              string
	// MeshMTU is the size of the largest packet that this node can send to
	// another one, in bytes; 0 where it is alone.
	MeshMTU int
	// HostAPIPort is where the host's loopback reaches the API server; 0 for
	// a node that does not run one.
	HostAPIPort uint16
}

// Member is one node of a cluster as all others know it.
type Member struct {
	// Name is the Kubernetes node name, Host the machine's.
	Name, Host string
	// Address is the node's, Pods the part of the pod range that is its own.
	Address netip.Addr
	Pods    netip.Prefix
}

// MaxNodes is how many nodes a cluster can have: as many as the pod range has
// parts.
const MaxNodes = 1 << (nodeBits - blockBits - 1)

// ErrNoAddresses says that no range of addresses is free on all nodes.
var ErrNoAddresses = errors.New("choose addresses for pods and Services: the routes of the nodes cover every private range; name a range that nobody uses with --address-block PREFIX/14")

// Design makes the plan of every node of a cluster. The first node is the
// head, which runs the control plane.
func Design(spec Spec, offers []Offer) ([]Plan, error) {
	if len(offers) > MaxNodes {
		return nil, fmt.Errorf("design a cluster of %d nodes: %d is the most", len(offers), MaxNodes)
	}
	block, err := chooseBlock(spec, offers)
	if err != nil {
		return nil, err
	}
	registries, mtu := registriesOf(spec), podMTU(offers)
	plans := make([]Plan, len(offers))
	members := make([]Member, len(offers))
	names := map[string]string{}
	for i, offer := range offers {
		if host, taken := names[offer.Node.Name]; taken {
			return nil, fmt.Errorf("design the cluster: %s and %s would both be node %s", host, offer.Host, offer.Node.Name)
		}
		names[offer.Node.Name] = offer.Host
		addresses := addressesIn(block, i)
		addresses.HostAPIPort = offer.HostAPIPort
		members[i] = Member{Name: offer.Node.Name, Host: offer.Host, Address: addresses.Node, Pods: addresses.NodePods}
		plans[i] = Plan{
			RunID:             offer.RunID,
			KubernetesVersion: KubernetesVersion,
			Node:              offer.Node,
			Index:             i,
			Members:           members,
			Addresses:         addresses,
			Paths:             offer.Paths,
			OneUID:            offer.OneUID,
			CgroupsDelegated:  offer.CgroupsDelegated,
			Snapshotter:       offer.Snapshotter,
			PodMTU:            mtu,
			Registries:        registries,
			SharedVolumes:     spec.SharedVolumes,
			Verbosity:         spec.Verbosity,
		}
	}
	return plans, nil
}

// chooseBlock finds a block that clashes with no route of any node. A default
// route is not in use. What the user names is taken: a route may cover more
// than its site uses.
func chooseBlock(spec Spec, offers []Offer) (netip.Prefix, error) {
	if spec.AddressBlock != "" {
		return parseBlock(spec.AddressBlock)
	}
	var used []netip.Prefix
	for _, offer := range offers {
		used = append(used, offer.Used...)
	}
	blocks := candidates()
	i := slices.IndexFunc(blocks, func(block netip.Prefix) bool { return free(block, used) })
	if i < 0 {
		return netip.Prefix{}, ErrNoAddresses
	}
	return blocks[i], nil
}

// LocalMTU is the largest packet between pods of one node. Nothing below a
// bridge of veth pairs is smaller, and one large packet costs what a small one
// does. 16 bytes under the maximum, so that it stays a multiple of 8.
const LocalMTU = 65520

// podMTU is the smallest of all nodes, so that no packet has to be cut.
func podMTU(offers []Offer) int {
	mtu := LocalMTU
	for _, offer := range offers {
		if offer.MeshMTU > 0 {
			mtu = min(mtu, offer.MeshMTU)
		}
	}
	return mtu
}

// parseBlock reads a block of addresses that the user names.
func parseBlock(value string) (netip.Prefix, error) {
	block, err := netip.ParsePrefix(value)
	if err != nil || !block.Addr().Is4() || block.Bits() != blockBits || block.Masked() != block {
		return netip.Prefix{}, fmt.Errorf("address block %q: give an IPv4 prefix of %d bits, such as 100.64.0.0/%d", value, blockBits, blockBits)
	}
	return block, nil
}

// registriesOf are those of the command line, which is known to be valid.
func registriesOf(spec Spec) Registries {
	servers := map[string]string{}
	for _, registry := range spec.Registries {
		if name, server, err := SplitRegistry(registry); err == nil {
			servers[name] = server
		}
	}
	return Registries{NoPull: spec.NoPull, Mirror: MirrorAddress, Servers: servers}
}
