package sandbox

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
)

// setUpNetwork makes the node's own interfaces. It returns the egress device,
// or nil where this host has none to offer: the cluster then works, and its
// pods reach no further than the cluster.
func setUpNetwork(network Network) (*os.File, error) {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return nil, fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return nil, fmt.Errorf("set loopback up: %w", err)
	}
	node := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: network.NodeLink}}
	if err := netlink.LinkAdd(node); err != nil {
		return nil, fmt.Errorf("add bridge %s: %w", network.NodeLink, err)
	}
	for _, address := range network.NodeAddresses {
		if err := netlink.AddrAdd(node, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
			return nil, fmt.Errorf("add address %s to %s: %w", address, network.NodeLink, err)
		}
	}
	if err := netlink.LinkSetUp(node); err != nil {
		return nil, fmt.Errorf("set %s up: %w", network.NodeLink, err)
	}
	return setUpEgress(network)
}

func setUpEgress(network Network) (*os.File, error) {
	tun, err := linux.OpenTUN(network.EgressLink)
	if err != nil {
		fmt.Fprintln(os.Stderr, "init: no egress:", err)
		return nil, nil
	}
	link, err := netlink.LinkByName(network.EgressLink)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", network.EgressLink, err)
	}
	if err := netlink.LinkSetMTU(link, network.MTU); err != nil {
		return nil, fmt.Errorf("set MTU %d of %s: %w", network.MTU, network.EgressLink, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", network.EgressLink, err)
	}
	source := net.IP(network.Source.AsSlice())
	for _, route := range []*netlink.Route{
		{LinkIndex: link.Attrs().Index, Dst: ipNet(netip.PrefixFrom(network.Gateway, network.Gateway.BitLen())), Scope: unix.RT_SCOPE_LINK, Src: source},
		{LinkIndex: link.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Src: source},
	} {
		if err := netlink.RouteAdd(route); err != nil {
			return nil, fmt.Errorf("add route to %v over %s: %w", route.Dst, network.EgressLink, err)
		}
	}
	return tun, nil
}

// setUpForwarding lets the kernel route between pods, and lets Services work
// between two pods of one bridge.
func setUpForwarding() error {
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		return fmt.Errorf("switch forwarding on: %w", err)
	}
	// Absent without the module br_netfilter, which only root can load.
	err := os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("1"), 0)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("show bridged packets to the packet filter: %w", err)
	}
	return nil
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
