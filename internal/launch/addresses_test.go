package launch

import (
	"net/netip"
	"slices"
	"testing"

	"berth.dev/berth/internal/base/cluster"
)

func TestSandboxNetwork(t *testing.T) {
	offers := []cluster.Offer{
		{RunID: "job-1-0", IPv6: cluster.ToOutside, Node: cluster.Node{Name: "a"}},
		{RunID: "job-1-0", IPv6: cluster.ToOutside, Node: cluster.Node{Name: "b"}},
	}
	for family, addresses := range map[string]int{cluster.IPv4Only: 2, cluster.DualStack: 3} {
		plans, err := cluster.Design(cluster.Spec{Network: cluster.Network{IPFamily: family}}, offers)
		if err != nil {
			t.Fatal(err)
		}
		var own []netip.Prefix
		for _, plan := range plans {
			network := sandboxNetwork(plan, 2)
			if len(network.NodeAddresses) != addresses || len(network.Sources) != addresses-1 || len(network.Overlay.Routes) != 2*len(network.Sources) {
				t.Errorf("%s: %+v, routes %v", family, network, network.Overlay.Routes)
			}
			for i, source := range network.Sources {
				if own = append(own, network.NodeAddresses[i]); network.NodeAddresses[i].Addr() != source {
					t.Errorf("%s: packets come from %s, and not from the first addresses %v", family, source, network.NodeAddresses)
				}
			}
			// The addresses of other nodes are on other hosts.
			for _, other := range plans {
				for _, address := range other.Members[other.Index].Prefixes {
					if !slices.ContainsFunc(network.Overlay.Routes, func(route netip.Prefix) bool { return route.Overlaps(address) }) {
						t.Errorf("%s: no route to %s", family, address)
					}
				}
			}
		}
		for i, address := range own {
			if !address.IsSingleIP() || slices.Contains(own[:i], address) {
				t.Errorf("%s: address %s is not of one node alone", family, address)
			}
		}
		if network := sandboxNetwork(plans[0], 0); network.Overlay != nil {
			t.Errorf("%s: a node that is alone has a way to others", family)
		}
	}
}

func TestReach(t *testing.T) {
	global := netip.MustParseAddr("2001:db8::1")
	if reach(false, global) != cluster.Nowhere || reach(true, netip.Addr{}) != cluster.ToNodes || reach(true, global) != cluster.ToOutside {
		t.Error("the probe's answers are not taken for what they mean")
	}
}
