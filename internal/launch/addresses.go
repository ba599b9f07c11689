package launch

import (
	"net/netip"
	"slices"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/node/sandbox"
)

// sandboxNetwork returns the network of a node's sandbox. queues is the number of
// threads that carry packets between nodes, or 0 for a single node.
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
		network.Overlay = &sandbox.Overlay{Link: cluster.OverlayLink, Queues: queues, MTU: plan.PodMTU}
	}
	for _, family := range addresses.Families() {
		network.Sources = append(network.Sources, family.Node)
		if network.Overlay != nil {
			network.Overlay.Routes = append(network.Overlay.Routes, family.Pods, family.Nodes)
		}
	}
	for _, address := range append(slices.Clone(network.Sources), addresses.DNS) {
		// Other nodes' addresses of the same range are on other hosts.
		network.NodeAddresses = append(network.NodeAddresses, netip.PrefixFrom(address, address.BitLen()))
	}
	return network
}
