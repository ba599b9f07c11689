package cluster

import (
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
	addresses, err := ChooseAddresses(used, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := netip.MustParsePrefix("10.248.0.0/15"); addresses.Pods != want {
		t.Errorf("pods are %s, want %s", addresses.Pods, want)
	}
}

func TestAddressesOfOneClusterDoNotMeet(t *testing.T) {
	for _, index := range []int{0, 1, 7, 249, 250, 255} {
		a, err := ChooseAddresses(nil, index)
		if err != nil {
			t.Fatal(err)
		}
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
	used := []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12")}
	if _, err := ChooseAddresses(used, 0); err == nil {
		t.Error("addresses were found where none are free")
	}
}
