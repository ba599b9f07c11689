package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestAddressesAvoidTheHostsRoutes(t *testing.T) {
	used := []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), // the default route is no clash
		netip.MustParsePrefix("100.64.0.0/10"),
		netip.MustParsePrefix("10.252.3.0/24"),
		netip.MustParsePrefix("fd00::/8"),
	}
	// Of any node.
	plans, err := Design(Spec{}, []Offer{{Host: "a", Used: used[:2]}, {Host: "b", Used: used[2:]}})
	if err != nil {
		t.Fatal(err)
	}
	for i, plan := range plans {
		if want := netip.MustParsePrefix("10.248.0.0/15"); plan.Addresses.Pods != want {
			t.Errorf("node %d: pods are %s, want %s", i, plan.Addresses.Pods, want)
		}
	}
}

func TestClusterAddressesDoNotOverlap(t *testing.T) {
	for _, c := range []struct{ nodes, pods int }{{1, 0}, {256, 0}, {512, 0}, {1024, 0}, {2048, 0}, {maxNodes, 0}, {maxNodes, 110}, {maxNodes, leastPodsPerNode}, {1, mostPodsPerNode}} {
		l, err := layoutFor(c.nodes, c.pods, netip.Prefix{})
		if err != nil {
			t.Fatal(err)
		}
		if l.pods() < c.pods {
			t.Errorf("%d nodes with %d pods: a node has addresses for %d", c.nodes, c.pods, l.pods())
		}
		checkLayout(t, l, candidates(l.blockBits)[0], c.nodes)
	}
	for _, named := range []string{"10.0.0.0/8", "10.16.0.0/16", "192.168.0.0/20"} {
		block := netip.MustParsePrefix(named)
		l, err := layoutFor(1, 0, block)
		if err != nil {
			t.Fatal(err)
		}
		checkLayout(t, l, block, l.nodes())
	}
}

// checkLayout checks that no two addresses and no two ranges of a cluster are the same.
func checkLayout(t *testing.T, l layout, block netip.Prefix, nodes int) {
	t.Helper()
	taken := map[netip.Addr]string{}
	var before netip.Prefix
	for index := range nodes {
		a := l.addresses(block, index)
		if index > 0 && a.NodePods.Overlaps(before) || !a.Pods.Contains(a.NodePods.Addr()) || a.NodePods.Masked() != a.NodePods {
			t.Fatalf("node %d of %d in %s: its pods %s overlap others, or are no part of %s", index, nodes, block, a.NodePods, a.Pods)
		}
		before = a.NodePods
		ranges := []netip.Prefix{a.Pods, a.Services, a.Nodes}
		for i, first := range ranges {
			if !block.Contains(first.Addr()) || first.Masked() != first {
				t.Fatalf("%s is no part of %s", first, block)
			}
			for _, second := range ranges[i+1:] {
				if first.Overlaps(second) {
					t.Fatalf("%s overlaps %s", first, second)
				}
			}
		}
		if !a.Services.Contains(a.APIService) || !a.Services.Contains(a.DNSService) {
			t.Fatalf("%s and %s are no part of %s", a.APIService, a.DNSService, a.Services)
		}
		named := map[string]netip.Addr{fmt.Sprint("node ", index): a.Node}
		if index == 0 {
			named["dns"], named["gateway"] = a.DNS, a.Gateway
		}
		for name, address := range named {
			if !a.Nodes.Contains(address) {
				t.Fatalf("%s: %s is outside %s", name, address, a.Nodes)
			}
			if other, ok := taken[address]; ok {
				t.Fatalf("%s and %s have the same address %s", name, other, address)
			}
			taken[address] = name
		}
	}
}

func TestLayouts(t *testing.T) {
	for _, c := range []struct {
		nodes, pods int
		block       string
		want        layout
		err         string
	}{
		{1, 0, "", layout{14, 23}, ""},
		{256, 0, "", layout{14, 23}, ""},
		{257, 0, "", layout{14, 24}, ""},
		{513, 0, "", layout{14, 25}, ""},
		{1025, 0, "", layout{13, 25}, ""},
		{maxNodes, 0, "", layout{12, 25}, ""},
		{maxNodes, 29, "", layout{14, 27}, ""},
		{maxNodes, 30, "", layout{13, 26}, ""},
		{maxNodes, mostPodsPerNode, "", layout{}, "--pods-per-node"},
		{64, 0, "10.0.0.0/16", layout{16, 23}, ""},
		{4, 0, "192.168.0.0/20", layout{20, 23}, ""},
		{17, 0, "192.168.0.0/20", layout{}, "room for 16 such nodes; name a larger block (--address-block PREFIX/16)"},
		{17, 60, "192.168.0.0/20", layout{20, 26}, ""},
		{maxNodes, 0, "10.0.0.0/8", layout{8, 23}, ""},
	} {
		var block netip.Prefix
		if c.block != "" {
			block = netip.MustParsePrefix(c.block)
		}
		got, err := layoutFor(c.nodes, c.pods, block)
		if got != c.want || (err == nil) != (c.want != layout{}) || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%d nodes with %d pods in %q: %v, %v, want %v, %s", c.nodes, c.pods, c.block, got, err, c.want, c.err)
		}
	}
}

func TestNodesOfferNoMorePodsThanAddresses(t *testing.T) {
	for _, c := range []struct{ asked, offered, want int }{{0, 250, 250}, {5, 250, 5}, {100, 250, 100}, {100, 80, 80}} {
		plans, err := Design(Spec{PodsPerNode: c.asked}, []Offer{{Host: "a", Node: Node{MaxPods: c.offered}}})
		if err != nil || plans[0].Node.MaxPods != c.want {
			t.Errorf("%+v: %d, %v", c, plans[0].Node.MaxPods, err)
		}
	}
	if err := (Spec{Command: []string{"true"}, NodesPerHost: 1, PodsPerNode: mostPodsPerNode + 1}).Validate(); err == nil {
		t.Error("too many pods per node pass")
	}
}

func TestNoFreeAddressesIsAnError(t *testing.T) {
	offer := Offer{Used: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12")}}
	if _, err := Design(Spec{}, []Offer{offer}); !errors.Is(err, errNoAddresses) {
		t.Errorf("addresses were found where none are free: %v", err)
	}
	// Unless the user knows better.
	plans, err := Design(Spec{AddressBlock: "10.16.0.0/14"}, []Offer{offer})
	if err != nil || plans[0].Addresses.Pods != netip.MustParsePrefix("10.16.0.0/15") {
		t.Errorf("%v, %v", plans, err)
	}
	for _, block := range []string{"10.16.0.0", "10.16.0.0/21", "10.0.0.0/7", "10.17.0.0/14", "fd00::/14", "x"} {
		if err := (Spec{Command: []string{"true"}, AddressBlock: block}).Validate(); err == nil {
			t.Errorf("block %s passes", block)
		}
	}
}
