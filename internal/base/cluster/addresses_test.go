package cluster

import (
	"errors"
	"net/netip"
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
	for _, index := range []int{0, 1, 7, 249, 250, 255} {
		a := addressesIn(candidates()[0], index)
		if !a.Pods.Contains(a.NodePods.Addr()) || a.NodePods.Masked() != a.NodePods {
			t.Errorf("node %d: its pods %s are no part of %s", index, a.NodePods, a.Pods)
		}
		ranges := []netip.Prefix{a.Pods, a.Services, a.Nodes}
		for i, first := range ranges {
			for _, second := range ranges[i+1:] {
				if first.Overlaps(second) {
					t.Errorf("%s overlaps %s", first, second)
				}
			}
		}
		for name, address := range map[string]netip.Addr{"node": a.Node, "dns": a.DNS, "gateway": a.Gateway} {
			if !a.Nodes.Contains(address) {
				t.Errorf("node %d: %s %s is outside %s", index, name, address, a.Nodes)
			}
		}
		if a.Node == a.DNS || a.Node == a.Gateway {
			t.Errorf("node %d: address %s is taken", index, a.Node)
		}
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
	for _, block := range []string{"10.16.0.0", "10.16.0.0/16", "10.17.0.0/14", "fd00::/14", "x"} {
		if err := (Spec{Command: []string{"true"}, AddressBlock: block}).Validate(); err == nil {
			t.Errorf("block %s passes", block)
		}
	}
}
