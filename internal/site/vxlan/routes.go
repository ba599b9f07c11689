package vxlan

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
)

// protocol marks our routes in the kernel's table, by a number that nobody has
// in /etc/iproute2/rt_protos.
const protocol = 98

// routes are those of the host to pods: of its own through their bridge, or the link
// that each has where they are routed, of others through their nodes, where these are on the same link. Where they are
// not, a gateway has a tunnel to them, and for others the site's routers know the
// way to a gateway.
//
// The way to a pod on another node is not the tunnel, although there is one: its
// packets to this host come from the node without one, and a host that filters
// by the reverse path would drop them.
func (k *Kernel) routes(s State, uplink, far netlink.Link) error {
	wanted := map[string]netlink.Route{}
	if err := s.ownRoutes(wanted); err != nil {
		return err
	}
	own, err := netlink.AddrList(uplink, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", uplink.Attrs().Name, err)
	}
	for _, peer := range s.remote() {
		if far != nil && slices.Contains(s.distant, peer.Via) {
			wanted[single(peer.Address).String()] = netlink.Route{LinkIndex: far.Attrs().Index, Gw: peer.Via.AsSlice(), Src: s.Host.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}
			s.alsoIPv6(wanted, netip.PrefixFrom(peer.Address, 32), netlink.Route{LinkIndex: far.Attrs().Index, Gw: siteconf.NextHop(peer.Via).AsSlice()})
			continue
		}
		to := s.Routed.of(peer.Address)
		if slices.ContainsFunc(own, func(a netlink.Addr) bool { return a.Contains(peer.Via.AsSlice()) }) {
			wanted[prefixOf(to).String()] = netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: peer.Via.AsSlice(), Src: s.Host.AsSlice()}
			s.alsoIPv6(wanted, to, netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: siteconf.NextHop(peer.Via).AsSlice()})
		} else {
			k.tell(s, to, peer.Via)
		}
	}
	if err := s.answerFor(wanted); err != nil {
		return err
	}
	have, err := routesOf(s.families(), &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return err
	}
	// One socket for all, as in peers.
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("ask for routes: %w", err)
	}
	defer kernel.Close()
	var problems []error
	for _, route := range have {
		want, ok := wanted[route.Dst.String()]
		// One that leads nowhere has an interface in IPv6, the loopback.
		there := want.LinkIndex == 0 || want.LinkIndex == route.LinkIndex
		if ok && there && cmp.Or(want.Type, unix.RTN_UNICAST) == route.Type && want.Gw.Equal(route.Gw) && want.Src.Equal(route.Src) {
			delete(wanted, route.Dst.String())
		} else if err := kernel.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			problems = append(problems, fmt.Errorf("remove route to %s: %w", route.Dst, err))
		}
	}
	for to, route := range wanted {
		_, route.Dst, err = net.ParseCIDR(to)
		if err != nil {
			return err
		}
		route.Protocol = protocol
		if err := kernel.RouteReplace(&route); err != nil {
			problems = append(problems, fmt.Errorf("add route to %s: %w", to, err))
		}
	}
	return errors.Join(problems...)
}

// Led are the pods of other nodes, or a node's subnet of them by its first address, to
// which routes of a daemon before lead this host.
func (k *Kernel) Led(pods netip.Prefix) ([]Peer, error) {
	routes, err := routesOf([]int{netlink.FAMILY_V4}, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return nil, err
	}
	var led []Peer
	for _, route := range routes {
		to, toIsOne := netip.AddrFromSlice(route.Dst.IP.To4())
		via, viaIsOne := netip.AddrFromSlice(route.Gw.To4())
		if toIsOne && viaIsOne && pods.Contains(to) {
			led = append(led, Peer{Address: to, Via: via})
		}
	}
	return led, nil
}

// alsoIPv6 leads the second addresses of pods as their first ones. No source is said: whoever
// has no IPv6 address of his own that pods can answer does not reach them by it.
func (s State) alsoIPv6(wanted map[string]netlink.Route, to netip.Prefix, route netlink.Route) {
	if s.dual() {
		wanted[prefixOf(s.IPv6.SecondOf(to)).String()] = route
	}
}

func routesOf(families []int, filter *netlink.Route, mask uint64) ([]netlink.Route, error) {
	var all []netlink.Route
	for _, family := range families {
		of, err := netlink.RouteListFiltered(family, filter, mask)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		all = append(all, of...)
	}
	return all, nil
}

// ownRoutes are those to pods here.
func (s State) ownRoutes(wanted map[string]netlink.Route) error {
	if s.Routed != nil && s.Routed.Own.IsValid() && len(s.Networks) > 0 {
		// What is nobody's must not go to a router, which would send it back.
		wanted[prefixOf(s.Routed.Own).String()] = netlink.Route{Type: unix.RTN_UNREACHABLE}
		s.alsoIPv6(wanted, s.Routed.Own, netlink.Route{Type: unix.RTN_UNREACHABLE})
	}
	for _, n := range s.Networks {
		for _, pod := range n.Local {
			name := bridgeName(n.VNI)
			if s.Routed != nil {
				name = podName(pod.Address)
			}
			link, err := netlink.LinkByName(name)
			if err != nil {
				return fmt.Errorf("look at interface %s: %w", name, err)
			}
			wanted[single(pod.Address).String()] = netlink.Route{LinkIndex: link.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Src: s.Host.AsSlice()}
			s.alsoIPv6(wanted, netip.PrefixFrom(pod.Address, 32), netlink.Route{LinkIndex: link.Attrs().Index})
		}
	}
	return nil
}

// answerFor has a gateway that gives pods addresses of their own count these as its own:
// then it answers for them on its links, and what belongs to no connection ends here
// (chain input), where it would go back to where it comes from otherwise.
func (s State) answerFor(wanted map[string]netlink.Route) error {
	if !s.forwards() || !s.As.First.IsValid() {
		return nil
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find the loopback: %w", err)
	}
	for address := range s.As.All() {
		wanted[single(address).String()] = netlink.Route{LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST}
	}
	return nil
}

// checkAs: no address that pods get from this gateway may be another host's of which it
// knows, nor what CheckAs says.
func (s State) checkAs() error {
	if !s.Forwards {
		return nil
	}
	hosts := slices.Clone(s.Gateways)
	for _, peer := range s.remote() {
		hosts = append(hosts, peer.Via)
	}
	for _, host := range hosts {
		if host != s.Host && s.As.Contains(host) {
			return errAs(host, "that of another host")
		}
	}
	return CheckAs(s.As)
}

// CheckAs says which of the addresses that pods shall get from this gateway has an owner
// already: this host, which would drop all that comes for it, or one of its routers, for
// which it would answer on the link of both.
func CheckAs(as siteconf.AddressRange) error {
	if !as.First.IsValid() {
		return nil
	}
	own, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of the host: %w", err)
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	return ownerOf(as, own, routes)
}

func ownerOf(as siteconf.AddressRange, own []netlink.Addr, routes []netlink.Route) error {
	within := func(ip net.IP) (netip.Addr, bool) {
		address, _ := netip.AddrFromSlice(ip)
		return address.Unmap(), as.Contains(address.Unmap())
	}
	for _, a := range own {
		if address, found := within(a.IP); found {
			return errAs(address, "this host's own")
		}
	}
	for _, route := range routes {
		hops := []net.IP{route.Gw}
		for _, hop := range route.MultiPath {
			hops = append(hops, hop.Gw)
		}
		for _, hop := range hops {
			if address, found := within(hop); found {
				return errAs(address, "that of a router of this host")
			}
		}
	}
	return nil
}

func errAs(address netip.Addr, whose string) error {
	return fmt.Errorf("give pods the addresses of 'gateways.as': %s is %s: leave it out of the range in the configuration", address, whose)
}

// remote are all pods on other nodes that this host reaches.
func (s State) remote() []Peer {
	all := slices.Clone(s.Outside)
	for _, n := range s.Networks {
		all = append(all, n.Peers...)
	}
	return all
}

// forwarding has these interfaces forward, for packets that come to pods from
// outside, and others again as before. It returns those that did not before. A
// file for each remembers that, for a daemon that was started again.
func (k *Kernel) forwarding(wanted []string) ([]string, error) {
	marks, err := filepath.Glob(k.mark("*"))
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, mark := range marks {
		name := strings.TrimPrefix(mark, k.mark(""))
		if slices.Contains(wanted, name) {
			continue
		}
		if err := stopForwarding(name); err != nil {
			problems = append(problems, fmt.Errorf("stop %s from forwarding: %w", name, err))
			continue
		}
		problems = append(problems, os.Remove(mark))
	}
	var opened []string
	for _, name := range wanted {
		file := "ipv4/conf/" + name + "/forwarding"
		now, err := current(file)
		if os.IsNotExist(err) {
			// A gateway without it does not count as one (Carries), but may have pods.
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read whether %s forwards: %w", name, err)
		}
		if slices.Contains(marks, k.mark(name)) {
			opened = append(opened, name)
		}
		if now == "1" {
			continue
		}
		if !slices.Contains(opened, name) {
			if err := os.WriteFile(k.mark(name), nil, 0o600); err != nil {
				return nil, fmt.Errorf("remember that %s does not forward: %w", name, err)
			}
			opened = append(opened, name)
		}
		if err := setting(file, "1"); err != nil {
			return nil, fmt.Errorf("let %s forward: %w", name, err)
		}
	}
	return opened, errors.Join(problems...)
}

// stopForwarding is without the file of the setting, which waits for the kernel's lock of all
// networks by trying again and again: as jobs end, that is taken for long. What the kernel does
// there beside is to look up anew what it has looked up.
func stopForwarding(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return err
	}
	const inetConf, forwarding = 1, 1
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(link.Attrs().Index))
	off := linux.NetlinkAttribute(forwarding, make([]byte, 4))
	body = append(body, linux.NetlinkAttribute(unix.IFLA_AF_SPEC, linux.NetlinkAttribute(unix.AF_INET, linux.NetlinkAttribute(inetConf, off)))...)
	if err := linux.NetlinkExchange(unix.NETLINK_ROUTE, []linux.NetlinkRequest{{Type: unix.RTM_SETLINK, Flags: unix.NLM_F_ACK, Body: body}}); err != nil {
		return err
	}
	return os.WriteFile("/proc/sys/net/ipv4/route/flush", []byte("1"), 0)
}

func (k *Kernel) mark(name string) string { return filepath.Join(k.Dir, "forwarding-"+name) }
