package vxlan

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

// In a new network namespace, the routes of a host with pods follow their gateways.
// The next daemon recognizes them, and they are removed with the pods.
func TestPodsAreRoutedToTheirGateways(t *testing.T) {
	testutil.Require(t, testutil.Root)
	var err error
	linux.OnNewThread(func() { err = leadThroughGateways() })
	if err != nil {
		t.Fatal(err)
	}
}

func leadThroughGateways() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	address := netip.MustParseAddr
	s := State{
		Pods: netip.MustParsePrefix("10.128.0.0/12"), Host: address("192.168.1.11"), Hosts: netip.MustParsePrefix("192.168.1.0/24"),
		OutsideNetworks: []siteconf.OutsideNetwork{{Addresses: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.0.0.0/8")}}},
		Networks: []Network{{VNI: 4096, Local: []Pod{
			{Address: address("10.128.0.2"), Gateway: address("192.168.1.12")}, {Address: address("10.128.0.3"), Gateway: address("192.168.1.13")},
			{Address: address("10.128.0.4"), Gateway: address("192.168.1.11")}, {Address: address("10.128.0.5")},
		}}},
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}); err != nil {
		return err
	}
	if err := testutil.SetUpLink("eth0", netip.MustParsePrefix("192.168.1.11/24")); err != nil {
		return err
	}
	uplink, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	k := &Kernel{NFT: "nft"}
	local := s.Networks[0].Local
	for _, step := range []struct {
		change func()
		want   map[string]string
	}{
		{func() {}, map[string]string{"10.128.0.2": "192.168.1.12", "10.128.0.3": "192.168.1.13", "10.128.0.4": "192.168.1.11"}},
		{func() { local[0].Gateway = address("192.168.1.13") }, map[string]string{"10.128.0.2": "192.168.1.13", "10.128.0.3": "192.168.1.13", "10.128.0.4": "192.168.1.11"}},
		{func() { s.Networks[0].Local = local[1:] }, map[string]string{"10.128.0.3": "192.168.1.13", "10.128.0.4": "192.168.1.11"}},
		{func() { s.OutsideNetworks = nil }, map[string]string{}},
	} {
		step.change()
		for range 2 {
			if err := k.gateways(s, uplink, nil); err != nil {
				return err
			}
		}
		chosen, err := k.Chosen(s.Host, s.Hosts)
		if err != nil {
			return err
		}
		got := map[string]string{}
		for pod, gateway := range chosen {
			got[pod.String()] = gateway.String()
		}
		if !maps.Equal(got, step.want) {
			return fmt.Errorf("gateways %v, want %v", got, step.want)
		}
		if err := checkRoutes(step.want); err != nil {
			return err
		}
	}
	return nil
}

// Addresses of the gateway, its routers or other hosts are not given to pods.
func TestHostAddressesAreNotGivenToPods(t *testing.T) {
	testutil.Require(t, testutil.Root)
	linux.OnNewThread(func() {
		if err := refuseAs(); err != nil {
			t.Error(err)
		}
	})
}

func refuseAs() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := testutil.SetUpLink("lo"); err != nil {
		return err
	}
	for name, address := range map[string]string{"eth0": "192.168.1.11/24", "eth1": "198.51.100.17/28"} {
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
			return err
		}
		if err := testutil.SetUpLink(name, netip.MustParsePrefix(address)); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName("eth1")
	if err != nil {
		return err
	}
	ip := func(text string) net.IP { return netip.MustParseAddr(text).AsSlice() }
	hop := func(text string) *netlink.NexthopInfo {
		return &netlink.NexthopInfo{LinkIndex: link.Attrs().Index, Gw: ip(text)}
	}
	for _, route := range []netlink.Route{
		{Dst: prefixOf(netip.MustParsePrefix("0.0.0.0/0")), LinkIndex: link.Attrs().Index, Gw: ip("198.51.100.22")},
		{Dst: prefixOf(netip.MustParsePrefix("172.16.0.0/12")), MultiPath: []*netlink.NexthopInfo{hop("198.51.100.24"), hop("198.51.100.25")}},
		{Dst: prefixOf(netip.MustParsePrefix("10.0.0.0/8")), LinkIndex: link.Attrs().Index, Gw: ip("198.51.100.27"), Table: 77},
	} {
		if err := netlink.RouteAdd(&route); err != nil {
			return fmt.Errorf("add %s: %w", route, err)
		}
	}
	s := State{
		Host: netip.MustParseAddr("192.168.1.11"), Forwards: true, Gateways: []netip.Addr{netip.MustParseAddr("192.168.1.13")},
		Outside: []Peer{{Address: netip.MustParseAddr("10.128.0.3"), Via: netip.MustParseAddr("192.168.1.12")}},
	}
	k := &Kernel{NFT: "nft"}
	for text, whose := range map[string]string{
		"198.51.100.16/29": "198.51.100.17 is this host's own", "192.168.1.8-192.168.1.11": "192.168.1.11 is this host's own",
		"198.51.100.22": "198.51.100.22 is that of a router", "198.51.100.25-198.51.100.26": "198.51.100.25 is that of a router",
		"198.51.100.26-198.51.100.30": "198.51.100.27 is that of a router",
		"192.168.1.12":                "192.168.1.12 is that of another host", "192.168.1.13": "192.168.1.13 is that of another host",
		"198.51.100.18-198.51.100.21": "",
	} {
		if err := s.As.UnmarshalText([]byte(text)); err != nil {
			return err
		}
		if whose != "" {
			// This fails before anything is changed.
			if err := k.Apply(context.Background(), s, true); err == nil || !strings.Contains(err.Error(), whose) {
				return fmt.Errorf("%s: %w, want %s", text, err, whose)
			}
			continue
		}
		// It also works when they are already routed to the gateway.
		for range 2 {
			if err := s.checkAs(); err != nil {
				return err
			}
			uplink, err := netlink.LinkByName("eth0")
			if err != nil {
				return err
			}
			if err := k.routes(s, uplink, nil); err != nil {
				return err
			}
		}
	}
	// The next daemon recognizes the pod, and takes nothing else for a pod.
	for text, want := range map[string][]Peer{"10.128.0.0/12": s.Outside, "10.0.0.0/9": nil} {
		if led, err := k.Led(netip.MustParsePrefix(text)); err != nil || !slices.Equal(led, want) {
			return fmt.Errorf("pods of %s to which there is a way: %v (%w), want %v", text, led, err, want)
		}
	}
	return nil
}

// Probe and ProbeClear report a missing nft, also where rules are only removed.
func TestMissingNftIsReported(t *testing.T) {
	testutil.Require(t, testutil.Root)
	if err := ProbeClear(t.Context(), "nft"); err != nil {
		t.Error(err)
	}
	t.Setenv("PATH", t.TempDir())
	if err := ProbeClear(t.Context(), "nft"); err == nil || !strings.Contains(err.Error(), "install nftables") {
		t.Errorf("without nft: %v", err)
	}
}

// checkRoutes checks that each gateway except the host itself has the four routes of
// its table, and that no other table has any.
func checkRoutes(chosen map[string]string) error {
	extra, err := addRoutes(map[tableRoute]netlink.Route{}, []int{netlink.FAMILY_V4})
	if err != nil {
		return err
	}
	through := map[int]int{}
	for _, route := range extra {
		through[route.Table]++
	}
	want := map[int]int{}
	for _, gateway := range slices.Collect(maps.Values(chosen)) {
		if gateway != "192.168.1.11" {
			want[int(siteconf.Number(netip.MustParseAddr(gateway)))] = 4
		}
	}
	if len(chosen) > 0 {
		// The table of the pod without a gateway.
		want[int(siteconf.Number(netip.MustParseAddr("10.128.0.0")))] = 4
	}
	if len(want) > 0 && !maps.Equal(through, want) || len(want) == 0 && len(through) > 0 {
		return fmt.Errorf("routes by table %v, want %v", through, want)
	}
	return nil
}
