package vxlan

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// assignNodeAddresses gives this node the addresses that its pods use for it, while there
// are pods here. They are the same on all nodes, so only the loopback may have them: in
// jobs outside of pods, OpenMPI would try to connect two hosts through an address that
// both have. The first address is a local route and on no interface. The second
// one is an address of the loopback, because a host needs an IPv6 address to send
// from. Pods have permanent neighbour entries for both.
func (k *Kernel) assignNodeAddresses(s State) error {
	var first, second netip.Addr
	if len(s.Networks) > 0 {
		first = s.Gateway
		if s.dual() {
			second = s.IPv6.Second(s.Gateway)
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	if err := errors.Join(assignIPv4(lo, first), k.assignIPv6(lo, second)); err != nil || len(s.Networks) == 0 {
		return err
	}
	return k.clearInterfaces(s)
}

// assignIPv4 adds a local route for the address, and removes berthd's local routes for
// other addresses. With an invalid address it only removes.
func assignIPv4(lo netlink.Link, address netip.Addr) error {
	have, err := routesOf([]int{netlink.FAMILY_V4}, &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	var problems []error
	there := false
	for _, route := range have {
		if address.IsValid() && route.Dst.String() == single(address).String() {
			there = true
		} else if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			problems = append(problems, fmt.Errorf("remove local route to %s: %w", route.Dst, err))
		}
	}
	if address.IsValid() && !there {
		// The kernel has its own route for an address that is still on an interface:
		// append to it.
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: single(address), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL, Protocol: protocol}
		if err := netlink.RouteAppend(route); err != nil {
			problems = append(problems, fmt.Errorf("add local route to %s: %w", address, err))
		}
	}
	return errors.Join(problems...)
}

// assignIPv6 gives the loopback the address, and removes the other addresses that berthd
// gave it. Files record them, because the configuration may have changed since.
func (k *Kernel) assignIPv6(lo netlink.Link, address netip.Addr) error {
	marks, err := filepath.Glob(k.markLoopback("*"))
	if err != nil {
		return err
	}
	var problems []error
	for _, mark := range marks {
		former, err := netip.ParseAddr(strings.TrimPrefix(mark, k.markLoopback("")))
		if err != nil || former == address {
			continue
		}
		if err := netlink.AddrDel(lo, &netlink.Addr{IPNet: single(former)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			problems = append(problems, fmt.Errorf("take %s from the loopback: %w", former, err))
			continue
		}
		problems = append(problems, os.Remove(mark))
	}
	if address.IsValid() {
		mark := k.markLoopback(address.String())
		if !slices.Contains(marks, mark) {
			if err := os.WriteFile(mark, nil, 0o600); err != nil {
				return errors.Join(append(problems, fmt.Errorf("remember %s of the loopback: %w", address, err))...)
			}
		}
		if err := give(&netlink.Handle{}, lo, &netlink.Addr{IPNet: single(address), Flags: unix.IFA_F_NODAD}); err != nil {
			problems = append(problems, fmt.Errorf("give %s to the loopback: %w", address, err))
		}
	}
	return errors.Join(problems...)
}

func (k *Kernel) markLoopback(address string) string {
	return filepath.Join(k.Dir, "loopback-"+address)
}

// clearInterfaces removes the addresses that previous daemons gave to interfaces of
// pods. When the last IPv4 address of an interface goes, the kernel drops its routes
// and neighbours; they are set after this.
func (k *Kernel) clearInterfaces(s State) error {
	if k.interfacesCleared {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		if !ours(link.Attrs().Name) {
			continue
		}
		for _, address := range s.addresses(s.Gateway) {
			if err := netlink.AddrDel(link, &netlink.Addr{IPNet: single(address)}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) && !isGone(err) {
				return fmt.Errorf("take %s from interface %s: %w", address, link.Attrs().Name, err)
			}
		}
	}
	k.interfacesCleared = true
	return nil
}
