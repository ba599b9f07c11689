package vxlan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
	"berth.dev/berth/internal/site"
	"berth.dev/berth/internal/testutil"
)

// In a network of its own the routes of a host with pods follow their gateways, are
// known to the next daemon, and are gone when the pods are.
func TestPodsAreLedToTheirGateways(t *testing.T) {
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
		Beyond: []site.OutsideNetwork{{Addresses: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.0.0.0/8")}}},
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
	k := &Kernel{}
	local := s.Networks[0].Local
	for _, step := range []struct {
		change func()
		want   map[string]string
	}{
		{func() {}, map[string]string{"10.128.0.2": "192.168.1.12", "10.128.0.3": "192.168.1.13", "10.128.0.4": "192.168.1.11"}},
		{func() { local[0].Gateway = address("192.168.1.13") }, map[string]string{"10.128.0.2": "192.168.1.13", "10.128.0.3": "192.168.1.13", "10.128.0.4": "192.168.1.11"}},
		{func() { s.Networks[0].Local = local[1:] }, map[string]string{"10.128.0.3": "192.168.1.13", "10.128.0.4": "192.168.1.11"}},
		{func() { s.Beyond = nil }, map[string]string{}},
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

// checkRoutes: each gateway but the host itself has the four routes of its table, and
// no other table has any.
func checkRoutes(chosen map[string]string) error {
	extra, err := addRoutes(map[tableRoute]netlink.Route{})
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
			want[int(site.Number(netip.MustParseAddr(gateway)))] = 4
		}
	}
	if len(chosen) > 0 {
		// That of the pod without a gateway.
		want[int(site.Number(netip.MustParseAddr("10.128.0.0")))] = 4
	}
	if len(want) > 0 && !maps.Equal(through, want) || len(want) == 0 && len(through) > 0 {
		return fmt.Errorf("routes by table %v, want %v", through, want)
	}
	return nil
}
