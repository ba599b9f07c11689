package vxlan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
)

// Probe returns an error that names what the kernel or nft lacks for the networks of
// pods. It tests in a temporary network namespace and requires root. Routed pods need
// fewer kinds of interfaces, and IPv6 needs more rules. nft is the path or name of nft.
func Probe(ctx context.Context, nft string, routed bool, ipv6 siteconf.IPv6) error {
	var err error
	linux.OnNewThread(func() { err = probe(ctx, nft, routed, ipv6) })
	return err
}

// ProbeClear checks that nft can remove the rules of networks. berthd removes them
// when it starts, even if CNI plugins connect pods: tunnels may have been used
// before.
func ProbeClear(ctx context.Context, nft string) error {
	var err error
	linux.OnNewThread(func() {
		if err = isolate(); err == nil {
			err = try(ctx, nft, clearRules)
		}
	})
	return err
}

// isolate moves this thread to a new network namespace.
func isolate() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("make a network namespace: %w: be root", err)
	}
	return nil
}

// try loads rules into nft.
func try(ctx context.Context, nft, rules string) error {
	command := exec.CommandContext(ctx, nft, "-f", "-")
	command.Stdin = strings.NewReader(rules)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("load rules with nft: %w: %s: install nftables, and modprobe nf_tables_bridge", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func probe(ctx context.Context, nft string, routed bool, ipv6 siteconf.IPv6) error {
	if err := isolate(); err != nil {
		return err
	}
	links := map[string]netlink.Link{"veth": &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe2"}, PeerName: "probe3"}}
	if !routed {
		links["bridge"] = &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}}
		links["vxlan"] = &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "probe1"}, VxlanId: 1, Port: siteconf.TunnelPort}
	}
	for module, link := range links {
		if err := netlink.LinkAdd(link); err != nil {
			return fmt.Errorf("make an interface of type %s: %w: modprobe %[1]s", module, err)
		}
	}
	address := netip.MustParseAddr("192.0.2.1")
	if err := forgetConnections([]netip.Addr{address}); err != nil {
		return err
	}
	s := State{
		Pods: netip.MustParsePrefix("192.0.2.0/24"), Gateway: address, Host: address, Port: siteconf.TunnelPort, IPv6: ipv6,
		Networks: []Network{{VNI: 1, Owners: []Owner{{}}, Local: []Pod{{Address: address.Next()}}}},
	}
	if routed {
		s.Routed, s.uplink = &Routed{}, "lo"
	}
	return try(ctx, nft, s.rules(nil))
}

// CheckRanges returns an error if this host has addresses of pods in another network: on an
// interface, or behind a router. A route to all of the range, and to more, is harmless, because
// berthd's routes to pods are narrower. With routed pods, the site's routers may have taught this
// host the subnets of nodes.
func CheckRanges(routed bool, pods ...netip.Prefix) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	names := map[int]string{}
	for _, link := range links {
		names[link.Attrs().Index] = link.Attrs().Name
	}
	routes, err := routesOf([]int{netlink.FAMILY_V4, netlink.FAMILY_V6}, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	var problems []error
	for _, route := range routes {
		if route.Dst == nil || route.Protocol == protocol || ours(names[route.LinkIndex]) {
			continue
		}
		to, _ := netip.AddrFromSlice(route.Dst.IP)
		bits, _ := route.Dst.Mask.Size()
		network := netip.PrefixFrom(to.Unmap(), bits)
		onLink := route.Gw == nil && route.Via == nil && len(route.MultiPath) == 0
		for _, p := range pods {
			if p.IsValid() && network.Bits() > 0 && p.Overlaps(network) && (onLink || !routed && network.Bits() > p.Bits()) {
				problems = append(problems, fmt.Errorf("pods %s overlap network %s, which this host reaches by %s: choose a range that the site does not use", p, network, names[route.LinkIndex]))
			}
		}
	}
	return errors.Join(problems...)
}
