package vxlan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
)

// dual reports whether pods have IPv6 addresses. If not, nothing here uses IPv6.
func (s State) dual() bool { return s.IPv6.Dual() }

// families returns the address families that pods use.
func (s State) families() []int {
	if s.dual() {
		return []int{netlink.FAMILY_V4, netlink.FAMILY_V6}
	}
	return []int{netlink.FAMILY_V4}
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// addresses returns all addresses of a pod, or all addresses that a node has for its
// pods, given the IPv4 one.
func (s State) addresses(address netip.Addr) []netip.Addr {
	if s.dual() {
		return []netip.Addr{address, s.IPv6.Second(address)}
	}
	return []netip.Addr{address}
}

// setting6 sets an IPv6 setting of an interface.
func setting6(name, file, value string) error {
	if err := setting("ipv6/conf/"+name+"/"+file, value); err != nil {
		return fmt.Errorf("set net.ipv6.conf.%s.%s: %w", name, file, err)
	}
	return nil
}

// quiet keeps an interface from getting addresses that it was not assigned: none from
// routers, and none that it generates. It also turns off duplicate address detection,
// because duplicates cannot exist.
func quiet(name string) error {
	return errors.Join(setting6(name, "accept_ra", "0"), setting6(name, "addr_gen_mode", "1"), setting6(name, "accept_dad", "0"))
}

// setIPv6 enables IPv6 on one of the host's interfaces if pods have IPv6, and
// disables it otherwise, because a router of the host's network must not assign an
// address to it.
func (s State) setIPv6(name string) error {
	if s.dual() {
		return errors.Join(quiet(name), setting6(name, "disable_ipv6", "0"))
	}
	if err := setting6(name, "disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// usableLimit bounds the time until the kernel can use an address.
const usableLimit = 5 * time.Second

// give adds an address unless it exists. Even without duplicate address detection,
// the kernel accepts packets for it only when a worker has added a route
// (addrconf_dad_work). The worker waits for the kernel's RTNL lock: that takes
// milliseconds, and seconds on a busy machine.
func give(handle *netlink.Handle, link netlink.Link, address *netlink.Addr) error {
	have, err := handle.AddrList(link, netlink.FAMILY_V6)
	if err != nil || slices.ContainsFunc(have, func(a netlink.Addr) bool { return a.IPNet.String() == address.IPNet.String() }) {
		return err
	}
	if err := handle.AddrReplace(link, address); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: address.IP, Mask: net.CIDRMask(128, 128)}, Table: unix.RT_TABLE_LOCAL}
	for deadline := time.Now().Add(usableLimit); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		routes, err := handle.RouteListFiltered(netlink.FAMILY_V6, route, netlink.RT_FILTER_OIF|netlink.RT_FILTER_DST|netlink.RT_FILTER_TABLE)
		if err != nil || len(routes) > 0 {
			return err
		}
	}
	// Remove the address, or the next call would find it and not wait.
	return errors.Join(fmt.Errorf("the kernel takes no packets for it after %s", usableLimit), handle.AddrDel(link, address))
}

// configureIPv6 gives a pod its second address, even if it started before the site
// had IPv6. No neighbour discovery is needed for the router: as with routed IPv4, its
// neighbour entry is permanent.
func (s State) configureIPv6(inside *netlink.Handle, link netlink.Link, pod Pod) error {
	if !s.dual() {
		return nil
	}
	own, gateway := s.IPv6.Second(pod.Address), s.IPv6.Second(s.Gateway)
	address := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(s.IPv6.Pods.Bits(), own.BitLen())}, Flags: unix.IFA_F_NODAD}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: prefixOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0)), Gw: gateway.AsSlice()}
	if s.Routed != nil {
		address.Flags |= unix.IFA_F_NOPREFIXROUTE
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	have, err := inside.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list IPv6 addresses of the pod: %w", err)
	}
	if len(have) == 0 {
		// Entering the pod takes a thread, so do it only for a new pod.
		if err := enableIPv6(pod.Namespace); err != nil {
			return fmt.Errorf("let the pod speak IPv6: %w", err)
		}
	}
	if err := give(inside, link, address); err != nil {
		return fmt.Errorf("give %s to the pod: %w", own, err)
	}
	if err := inside.NeighSet(neighbour(link, gateway, bridgeMAC())); err != nil {
		return fmt.Errorf("set the IPv6 neighbour of the pod: %w", err)
	}
	if err := inside.RouteReplace(route); err != nil {
		return fmt.Errorf("set the IPv6 default route of the pod: %w", err)
	}
	return nil
}

// enableIPv6 enables IPv6 in a network namespace after making its interface quiet.
func enableIPv6(namespace string) error {
	return linux.InNetworkNamespace(namespace, func() error {
		if err := errors.Join(quiet("default"), quiet(podLink)); err != nil {
			return err
		}
		return errors.Join(setting6("all", "disable_ipv6", "0"), setting6(podLink, "disable_ipv6", "0"))
	})
}

// nextHop gives the uplink the address through which other hosts route packets to
// pods here. It removes the address when there is nothing to route.
func (s State) nextHop(uplink netlink.Link) error {
	if !s.dual() {
		return nil
	}
	hop := siteconf.NextHop(s.Host)
	address := &netlink.Addr{IPNet: single(hop), Flags: unix.IFA_F_NODAD | unix.IFA_F_NOPREFIXROUTE}
	var err error
	if s.active() {
		err = give(&netlink.Handle{}, uplink, address)
	} else if err = netlink.AddrDel(uplink, address); errors.Is(err, unix.EADDRNOTAVAIL) {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("change the next hop %s of interface %s: %w", hop, uplink.Attrs().Name, err)
	}
	return nil
}

// CheckIPv6 returns an error if this host cannot forward IPv6 packets to others.
func CheckIPv6(host netip.Addr) error {
	uplink, _, err := uplinkOf(host)
	if err != nil {
		return err
	}
	return checkIPv6Enabled(uplink)
}

// checkIPv6Enabled checks that IPv6 is enabled on the uplink, and on the loopback, which has
// this node's address for its pods.
func checkIPv6Enabled(uplink netlink.Link) error {
	return errors.Join(checkIPv6(uplink.Attrs().Name), checkIPv6("lo"))
}

func checkIPv6(name string) error {
	const otherwise = "or leave 'ipv6' out of the configuration"
	now, err := current("ipv6/conf/" + name + "/disable_ipv6")
	if err != nil {
		return fmt.Errorf("check whether interface %s has IPv6: %w: boot without ipv6.disable=1, %s", name, err, otherwise)
	}
	if now != "0" {
		return fmt.Errorf("interface %s has no IPv6: sysctl -w net.ipv6.conf.%[1]s.disable_ipv6=0, %s", name, otherwise)
	}
	return nil
}

// forwards6 reports whether this host forwards IPv6, or will, only because of pods.
func (k *Kernel) forwards6(wanted bool) (bool, error) {
	if !wanted {
		return false, nil
	}
	now, err := forwardsNow()
	if err != nil {
		return false, err
	}
	_, err = os.Stat(k.mark6("all"))
	return !now || err == nil, nil
}

func forwardsNow() (bool, error) {
	now, err := current("ipv6/conf/all/forwarding")
	if err != nil {
		return false, fmt.Errorf("read whether this host forwards IPv6: %w", err)
	}
	return now == "1", nil
}

// forwarding6 makes this host forward IPv6, which requires that the rules are loaded.
// The setting is one for all interfaces. Interfaces that take their addresses and
// routes from router advertisements would then stop doing so; forwarding6 makes them
// continue. Files record what has to be restored.
func (k *Kernel) forwarding6(wanted bool) error {
	if !wanted {
		if _, err := os.Stat(k.mark6("all")); err != nil {
			return nil
		}
		return k.forwardNoMore()
	}
	if now, err := forwardsNow(); err != nil || now {
		return err
	}
	if err := os.WriteFile(k.mark6("all"), nil, 0o600); err != nil {
		return fmt.Errorf("remember that this host does not forward IPv6: %w", err)
	}
	names, err := listening()
	if err != nil {
		return fmt.Errorf("look which interfaces listen to routers: %w", err)
	}
	for _, name := range names {
		if err := os.WriteFile(k.mark6(name), nil, 0o600); err != nil {
			return fmt.Errorf("remember that %s listens to routers: %w", name, err)
		}
		if err := setting6(name, "accept_ra", "2"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return setting6("all", "forwarding", "1")
}

// listening returns the interfaces that would ignore router advertisements once the
// host forwards.
func listening() ([]string, error) {
	entries, err := os.ReadDir("/proc/sys/net/ipv6/conf")
	if err != nil {
		return nil, err
	}
	has := func(name, file, value string) bool {
		now, err := current(filepath.Join("ipv6/conf", name, file))
		return err == nil && now == value
	}
	var names []string
	for _, entry := range entries {
		name := entry.Name()
		if name != "all" && name != "lo" && !ours(name) && has(name, "accept_ra", "1") && has(name, "forwarding", "0") {
			names = append(names, name)
		}
	}
	return names, nil
}

// forwardNoMore undoes forwarding6.
func (k *Kernel) forwardNoMore() error {
	// In this order, no advertisement is ever ignored.
	if err := setting6("all", "forwarding", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	marks, err := filepath.Glob(k.mark6("*"))
	if err != nil {
		return err
	}
	var problems []error
	for _, mark := range marks {
		name := strings.TrimPrefix(mark, k.mark6(""))
		if name == "all" {
			continue
		}
		if err := setting6(name, "accept_ra", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, err)
			continue
		}
		problems = append(problems, os.Remove(mark))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return os.Remove(k.mark6("all"))
}

func (k *Kernel) mark6(name string) string { return filepath.Join(k.Dir, "forwarding6-"+name) }
