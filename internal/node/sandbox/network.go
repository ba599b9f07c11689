package sandbox

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// devices are the files through which packets leave the sandbox.
type devices struct {
	egress  *os.File
	overlay []*os.File
}

// setUpNetwork makes the node's interfaces. Without /dev/net/tun there is no
// egress device: a cluster of one node works, but its pods reach nothing outside
// of it. Several nodes need the device.
func setUpNetwork(network Network) (d devices, err error) {
	if err := setUpNode(network); err != nil {
		return devices{}, err
	}
	if d.egress, err = setUpEgress(network); err != nil || network.Overlay == nil {
		return d, err
	}
	d.overlay, err = setUpOverlay(network)
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
		// The link has no other hosts, so duplicate address detection for IPv6
		// would only take time.
		if err := netlink.AddrAdd(node, &netlink.Addr{IPNet: ipNet(address), Flags: unix.IFA_F_NODAD}); err != nil {
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
	routes := []netip.Prefix{netip.PrefixFrom(network.Gateway, network.Gateway.BitLen())}
	for _, source := range network.Sources {
		routes = append(routes, netip.PrefixFrom(source, 0).Masked())
	}
	return tun, addRoutes(link, routes, network.Sources)
}

func setUpOverlay(network Network) ([]*os.File, error) {
	overlay := network.Overlay
	queues, err := linux.OpenTUNQueues(overlay.Link, overlay.Queues)
	if err != nil {
		return nil, fmt.Errorf("make the network between the nodes: %w", err)
	}
	link, err := netlink.LinkByName(overlay.Link)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", overlay.Link, err)
	}
	if err := netlink.LinkSetMTU(link, overlay.MTU); err != nil {
		return nil, fmt.Errorf("set MTU %d of %s: %w", overlay.MTU, overlay.Link, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set %s up: %w", overlay.Link, err)
	}
	return queues, addRoutes(link, overlay.Routes, network.Sources)
}

// addRoutes adds routes over a link, without a gateway, with the source address
// of the same IP family.
func addRoutes(link netlink.Link, to []netip.Prefix, sources []netip.Addr) error {
	for _, prefix := range to {
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(prefix), Scope: unix.RT_SCOPE_LINK}
		for _, source := range sources {
			if source.Is4() == prefix.Addr().Is4() {
				route.Src = source.AsSlice()
			}
		}
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("add route to %s over %s: %w", prefix, link.Attrs().Name, err)
		}
	}
	return nil
}

// setUpForwarding lets the kernel route between pods, including pods of one
// bridge. It disables ICMP redirects, which would direct pods to each other's
// address on the bridge, and packet filters for bridged packets.
func setUpForwarding(network Network) error {
	const bridge = "net/bridge/bridge-nf-call-"
	settings := []setting{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv4/conf/all/send_redirects", "0"}, {"net/ipv4/conf/default/send_redirects", "0"},
		{bridge + "iptables", "0"}, {bridge + "ip6tables", "0"},
	}
	if slices.ContainsFunc(network.Sources, netip.Addr.Is6) {
		settings = append(settings,
			setting{"net/ipv6/conf/all/forwarding", "1"},
			// The bridge of the pods gets its address while the first pod waits
			// for it. Addresses are unique, so duplicate address detection is
			// unnecessary.
			setting{"net/ipv6/conf/default/accept_dad", "0"})
	}
	for _, s := range settings {
		err := os.WriteFile("/proc/sys/"+s.name, []byte(s.value), 0)
		// The bridge's settings do not exist without the module br_netfilter.
		if err != nil && (!os.IsNotExist(err) || !strings.HasPrefix(s.name, bridge)) {
			return fmt.Errorf("let the kernel forward packets (%s=%s): %w", s.name, s.value, err)
		}
	}
	return nil
}

// setting is a file below /proc/sys and its value.
type setting struct{ name, value string }

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}
