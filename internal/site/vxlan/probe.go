package vxlan

import (
	"context"
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
