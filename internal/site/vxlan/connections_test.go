package vxlan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// Both ways remove the connections that a pod has opened and those opened to it, by
// any address, and keep all others.
func TestConnectionsOfDeletedPodsAreForgotten(t *testing.T) {
	testutil.Require(t, testutil.Root)
	ways := map[string]func(netip.Addr) error{
		"any kernel": deleteConnections,
		"this one":   func(address netip.Addr) error { return forgetConnections([]netip.Addr{address}) },
	}
	for name, forget := range ways {
		t.Run(name, func(t *testing.T) {
			linux.OnNewThread(func() {
				if err := forgets(forget); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func forgets(forget func(netip.Addr) error) error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	for _, all := range [][4]string{
		{"10.128.0.2", "10.128.0.3", "192.0.2.1", "198.51.100.1"},
		{"fd00::2", "fd00::3", "2001:db8::1", "2001:db8:1::1"},
	} {
		var a [4]netip.Addr
		for i, text := range all {
			a[i] = netip.MustParseAddr(text)
		}
		pod, other, outside, gateway := a[0], a[1], a[2], a[3]
		flows := []struct {
			from, to, answers, answered netip.Addr
			stays                       bool
		}{
			{from: pod, to: outside, answers: outside, answered: pod},
			{from: outside, to: pod, answers: pod, answered: outside},
			{from: pod, to: outside, answers: outside, answered: gateway},
			{from: outside, to: gateway, answers: pod, answered: outside},
			{from: other, to: outside, answers: outside, answered: other, stays: true},
			{from: outside, to: other, answers: other, answered: outside, stays: true},
		}
		want := map[uint16]bool{}
		for i, f := range flows {
			port := uint16(1000 + i)
			if err := track(port, f.from, f.to, f.answers, f.answered); err != nil {
				return fmt.Errorf("track %v: %w", f, err)
			}
			if f.stays {
				want[port] = true
			}
		}
		if err := forget(pod); err != nil {
			return fmt.Errorf("forget %s: %w", pod, err)
		}
		left, err := tracked(pod)
		if err != nil {
			return err
		}
		if !maps.Equal(left, want) {
			return fmt.Errorf("of %s are left %v, want %v", pod, slices.Sorted(maps.Keys(left)), slices.Sorted(maps.Keys(want)))
		}
	}
	return nil
}

// track adds a UDP connection to the kernel's table, with the addresses of its
// replies.
func track(port uint16, from, to, answers, answered netip.Addr) error {
	return netlink.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(familyOf(from)), &netlink.ConntrackFlow{
		FamilyType: uint8(familyOf(from)), TimeOut: 60,
		Forward: netlink.IPTuple{SrcIP: from.AsSlice(), DstIP: to.AsSlice(), SrcPort: port, DstPort: 80, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: answers.AsSlice(), DstIP: answered.AsSlice(), SrcPort: 80, DstPort: port, Protocol: unix.IPPROTO_UDP},
	})
}

// tracked returns the source ports of connections in the address's family.
func tracked(address netip.Addr) (map[uint16]bool, error) {
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.InetFamily(familyOf(address)))
	if err != nil {
		return nil, err
	}
	ports := map[uint16]bool{}
	for _, f := range flows {
		ports[f.Forward.SrcPort] = true
	}
	return ports, nil
}
