package launch

import (
	"net/netip"
	"slices"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/node/sandbox"
)

// sandboxNetwork is the network of a node's sandbox; queues is how many threads
// carry packets between nodes, 0 where there is one node.
func sandboxNetwork(plan cluster.Plan, queues int) sandbox.Network {
	addresses := plan.Addresses
	network := sandbox.Network{
		NodeLink:   cluster.NodeLink,
		EgressLink: cluster.EgressLink,
		MTU:        cluster.LocalMTU,
		Gateway:    addresses.Gateway,
		Listen:     netip.AddrPortFrom(netip.IPv4Unspecified(), addresses.APIPort),
	}
	if queues > 0 {
		network.Mesh = &sandbox.Mesh{Link: cluster.MeshLink, Queues: queues, MTU: plan.PodMTU}
	}
	for _, family := range addresses.Families() {
		network.Sources = append(network.Sources, family.Node)
		if network.Mesh != nil {
			network.Mesh.Routes = append(network.Mesh.Routes, family.Pods, family.Nodes)
		}
	}
	for _, address := range append(slices.Clone(network.Sources), addresses.DNS) {
		// Other nodes' addresses of the same range are elsewhere.
		network.NodeAddresses = append(network.NodeAddresses, netip.PrefixFrom(address, address.BitLen()))
	}
	return network
}
