package cluster

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
)

func TestClustersWithIPv6(t *testing.T) {
	full := []netip.Prefix{netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("::/0")}
	node := func(name string, reach Reach, used ...netip.Prefix) Offer {
		return Offer{Host: name, RunID: name, IPv6: reach, Used: used}
	}
	refused := node("b", ToOutside)
	refused.RefusedIPv6 = "nft: no"
	for name, c := range map[string]struct {
		family  string
		offers  []Offer
		has     bool
		without string // a part of the reason
		err     string
	}{
		"all reach the outside":       {"", []Offer{node("a", ToOutside), node("b", ToOutside)}, true, "", ""},
		"one does not":                {autoFamily, []Offer{node("a", ToOutside), node("b", ToNodes)}, false, "node b", ""},
		"one has none":                {"", []Offer{node("a", Nowhere), node("b", ToOutside)}, false, "node a", ""},
		"not wanted":                  {IPv4Only, []Offer{node("a", ToOutside)}, false, "", ""},
		"wanted":                      {DualStack, []Offer{node("a", ToOutside)}, true, "", ""},
		"wanted between pods":         {DualStack, []Offer{node("a", ToOutside), node("b", ToNodes)}, true, "node b", ""},
		"wanted of an old kernel":     {DualStack, []Offer{node("a", ToOutside), node("b", Nowhere)}, false, "", "node b"},
		"a default route is no clash": {"", []Offer{node("a", ToOutside, full[1])}, true, "", ""},
		"rules are refused":           {"", []Offer{node("a", ToOutside), refused}, false, "node b takes no rules", ""},
		"wanted, but no rules":        {DualStack, []Offer{node("a", ToNodes), refused}, false, "", "node b takes no rules"},
		"no range":                    {"", []Offer{node("a", ToOutside), node("b", ToOutside, full...)}, false, "fd00::/8", ""},
		"wanted, but no range":        {DualStack, []Offer{node("a", ToOutside, full...)}, false, "", "--ip-family ipv4"},
	} {
		plans, err := Design(Spec{Network: Network{IPFamily: c.family}}, c.offers)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, plan := range plans {
			a := plan.Addresses
			if (a.IPv6 != nil) != c.has || !strings.Contains(a.WithoutIPv6, c.without) || (a.WithoutIPv6 == "") != (c.without == "") {
				t.Errorf("%s: %+v, without IPv6 because %q", name, a.IPv6, a.WithoutIPv6)
			}
		}
	}
	if _, err := Design(Spec{Network: Network{IPFamily: DualStack}}, []Offer{node("a", ToOutside, full...)}); !errors.Is(err, errNoIPv6Addresses) {
		t.Error(err)
	}
}

func TestIPv6AddressesAvoidTheHostsRoutes(t *testing.T) {
	offer := Offer{RunID: "job-1-0", IPv6: ToOutside}
	first, err := Design(Spec{}, []Offer{offer})
	if err != nil {
		t.Fatal(err)
	}
	taken := first[0].Addresses.IPv6.Services // a part of the block is enough
	offer.Used = []netip.Prefix{taken}
	second, err := Design(Spec{}, []Offer{{RunID: "job-1-0", IPv6: ToOutside, Host: "head"}, offer})
	if err != nil {
		t.Fatal(err)
	}
	for _, plan := range second {
		for _, used := range plan.Addresses.Ranges() {
			if used.Overlaps(taken) {
				t.Errorf("%s is taken: %s", taken, used)
			}
		}
	}
	offer.RunID, offer.Used = "job-2-0", nil
	other, err := Design(Spec{}, []Offer{offer})
	if err != nil || other[0].Addresses.IPv6.Pods == first[0].Addresses.IPv6.Pods {
		t.Errorf("two runs have the same addresses: %+v, %v", other, err)
	}
}

func TestClusterIPv6AddressesDoNotOverlap(t *testing.T) {
	block := ulaBlock("job-1-0", 0)
	if !netip.MustParsePrefix("fd00::/8").Contains(block.Addr()) || block.Masked() != block {
		t.Errorf("%s is no block of unique local addresses", block)
	}
	nodes := map[netip.Addr]int{}
	var parts []netip.Prefix
	for index := range maxNodes {
		a := ipv6In(block, index)
		if !a.Pods.Contains(a.NodePods.Addr()) || a.NodePods.Masked() != a.NodePods || a.Pods.Masked() != a.Pods {
			t.Errorf("node %d: its pods %s are no part of %s", index, a.NodePods, a.Pods)
		}
		if a.Pods.Overlaps(a.Services) || a.Pods.Overlaps(a.Nodes) || a.Services.Overlaps(a.Nodes) {
			t.Errorf("node %d: ranges overlap: %+v", index, a)
		}
		if !a.Nodes.Contains(a.Node) {
			t.Errorf("node %d: %s is outside %s", index, a.Node, a.Nodes)
		}
		if other, taken := nodes[a.Node]; taken {
			t.Errorf("nodes %d and %d are both %s", index, other, a.Node)
		}
		nodes[a.Node] = index
		for _, part := range parts {
			if part.Overlaps(a.NodePods) {
				t.Errorf("node %d: %s is taken", index, a.NodePods)
			}
		}
		parts = append(parts, a.NodePods)
	}
}
