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
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
)

// dual says whether pods have IPv6 addresses. Without them nothing here speaks IPv6.
func (s State) dual() bool { return s.IPv6.Dual() }

// families are the kinds of addresses that there are.
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

// addresses are all that a pod has, or a node towards its pods, by the IPv4 one.
func (s State) addresses(address netip.Addr) []netip.Addr {
	if s.dual() {
		return []netip.Addr{address, s.IPv6.Second(address)}
	}
	return []netip.Addr{address}
}

// setting6 is one of an interface.
func setting6(name, file, value string) error {
	if err := setting("ipv6/conf/"+name+"/"+file, value); err != nil {
		return fmt.Errorf("set net.ipv6.conf.%s.%s: %w", name, file, err)
	}
	return nil
}

// quiet: an interface has the addresses that it is given and no others, from no router and
// not one of its own; and asks nobody whether somebody else has them, which nobody can.
func quiet(name string) error {
	return errors.Join(setting6(name, "accept_ra", "0"), setting6(name, "addr_gen_mode", "1"), setting6(name, "accept_dad", "0"))
}

// speakIPv6 has an interface of the host speak IPv6 if pods do, and otherwise not: a router
// of the host's network must not give it an address.
func (s State) speakIPv6(name string) error {
	if s.dual() {
		return errors.Join(quiet(name), setting6(name, "disable_ipv6", "0"))
	}
	if err := setting6(name, "disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// usableLimit is how long the kernel may take to use an address.
const usableLimit = 5 * time.Second

// give adds an address unless it is there. Also without duplicate address detection the
// kernel takes packets for it only when a thread of its own, which waits for the lock of all
// networks, has added a route (addrconf_dad_work): milliseconds later, on a busy machine seconds.
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
	// Away with it, or the next one to give it would find it there and not wait.
	return errors.Join(fmt.Errorf("the kernel takes no packets for it after %s", usableLimit), handle.AddrDel(link, address))
}

// configureIPv6 gives a pod its second address, also one that runs since before there were
// any. Nothing asks the router for itself: the pod knows it, as it does where it is routed.
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
		// To enter the pod takes a thread, so only where it is new.
		if err := speakIn(pod.Namespace); err != nil {
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

// speakIn has what is in a network namespace speak IPv6, after its interface is quiet.
func speakIn(namespace string) error {
	var err error
	linux.OnNewThread(func() {
		var ns netns.NsHandle
		if ns, err = netns.GetFromPath(namespace); err != nil {
			return
		}
		defer ns.Close()
		if err = netns.Set(ns); err != nil {
			return
		}
		if err = errors.Join(quiet("default"), quiet(podLink)); err == nil {
			err = errors.Join(setting6("all", "disable_ipv6", "0"), setting6(podLink, "disable_ipv6", "0"))
		}
	})
	return err
}

// nextHop gives the hosts' interface the address by which others lead packets to pods
// here, as long as there is something to lead.
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

// CheckIPv6 says whether this host can lead IPv6 packets to others.
func CheckIPv6(host netip.Addr) error {
	uplink, _, err := uplinkOf(host)
	if err != nil {
		return err
	}
	return speak(uplink)
}

// speak says whether the hosts' interface can, and the loopback, which has this node's address
// towards its pods.
func speak(uplink netlink.Link) error {
	return errors.Join(speaks(uplink.Attrs().Name), speaks("lo"))
}

func speaks(name string) error {
	const otherwise = "or leave 'ipv6' out of the configuration"
	now, err := current("ipv6/conf/" + name + "/disable_ipv6")
	if err != nil {
		return fmt.Errorf("look whether interface %s speaks IPv6: %w: boot without ipv6.disable=1, %s", name, err, otherwise)
	}
	if now != "0" {
		return fmt.Errorf("interface %s speaks no IPv6: sysctl -w net.ipv6.conf.%[1]s.disable_ipv6=0, %s", name, otherwise)
	}
	return nil
}

// forwards6 says whether this host forwards IPv6, or shall, and would not do so without pods.
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

// forwarding6 has this host forward IPv6, for which the rules have to be loaded.
// That is one setting for all interfaces, after which those that take their addresses
// and routes from a router's advertisements no longer would: they are told to go on. Files
// remember what has to be put back.
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

// listening are the interfaces that would be deaf to routers when the host is one.
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

func (k *Kernel) forwardNoMore() error {
	// In this order, so that there is no moment in which a router is not listened to.
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
