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

// devices are the files through which packets leave the sandbox.
type devices struct {
	egress *os.File
	mesh   []*os.File
}

// setUpNetwork makes the node's own interfaces. There is no egress device
// where this host has none to offer: the cluster then works, and its pods reach
// no further than the cluster. Several nodes cannot do without one.
func setUpNetwork(network Network) (d devices, err error) {
	if err := setUpNode(network); err != nil {
		return devices{}, err
	}
	if d.egress, err = setUpEgress(network); err != nil || network.Mesh == nil {
		return d, err
	}
	d.mesh, err = setUpMesh(network)
	return d, err
}

func setUpNode(network Network) error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := netlink.LinkSetUp(loopback); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	node := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: network.NodeLink}}
	if err := netlink.LinkAdd(node); err != nil {
		return fmt.Errorf("add bridge %s: %w", network.NodeLink, err)
	}
	for _, address := range network.NodeAddresses {
		if err := netlink.AddrAdd(node, &netlink.Addr{IPNet: ipNet(address)}); err != nil {
			return fmt.Errorf("add address %s to %s: %w", address, network.NodeLink, err)
		}
	}
	if err := netlink.LinkSetUp(node); err != nil {
		return fmt.Errorf("set %s up: %w", network.NodeLink, err)
	}
	return nil
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

func setUpMesh(network Network) ([]*os.File, error) {
	mesh := network.Mesh
	queues, err := linux.OpenTUNQueues(mesh.Link, mesh.Queues)
	if err != nil {
		return nil, fmt.Errorf("make the network between the nodes: %w", err)
	}
	link, err := netlink.LinkByName(mesh.Link)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", mesh.Link, err)
	}
	if err := netlink.LinkSetMTU(link, mesh.MTU); err != nil {
		return nil, fmt.Errorf("set MTU %d of %s: %w", mesh.MTU, mesh.Link, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", mesh.Link, err)
	}
	for _, prefix := range mesh.Routes {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(prefix), Scope: unix.RT_SCOPE_LINK, Src: net.IP(network.Source.AsSlice())}
		if err := netlink.RouteAdd(route); err != nil {
			return nil, fmt.Errorf("add route to %v over %s: %w", route.Dst, mesh.Link, err)
		}
	}
	return queues, nil
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
