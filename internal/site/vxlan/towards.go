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

// towardsPods makes this node's addresses towards its pods the node's own, as long as there are pods
// here. They are the same on all nodes, so no interface may have them but the loopback: OpenMPI, in
// jobs outside of pods, takes an address that two hosts share for a way between them. The first one is
// a local route, and on no interface. The second one is an address of the loopback, as by IPv6 the host
// needs one to send from. Pods know both as permanent neighbours.
func (k *Kernel) towardsPods(s State) error {
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
	if err := errors.Join(takeFirst(lo, first), k.takeSecond(lo, second)); err != nil || len(s.Networks) == 0 {
		return err
	}
	return k.leaveInterfaces(s)
}

// takeFirst has packets for the address be for this host, and for no other that was taken so. With
// an invalid address it is none.
func takeFirst(lo netlink.Link, address netip.Addr) error {
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
		// Beside the kernel's own for an address that an interface still has.
		route := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: single(address), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL, Protocol: protocol}
		if err := netlink.RouteAppend(route); err != nil {
			problems = append(problems, fmt.Errorf("add local route to %s: %w", address, err))
		}
	}
	return errors.Join(problems...)
}

// takeSecond gives the loopback the address, and takes others away that it was given so. Files
// remember these: the configuration may say another one by then, or none.
func (k *Kernel) takeSecond(lo netlink.Link, address netip.Addr) error {
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

// leaveInterfaces takes the addresses from the interfaces to pods, to which daemons before gave them.
// With the last IPv4 address of an interface the kernel forgets its routes and neighbours, which
// are set after this.
func (k *Kernel) leaveInterfaces(s State) error {
	if k.left {
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
	k.left = true
	return nil
}
