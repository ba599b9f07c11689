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

// protocol marks our routes in the kernel's table. No entry of
// /etc/iproute2/rt_protos has this number.
const protocol = 98

// routes sets the host's routes to pods. Pods of this host are reached through their
// bridge, or through their own link if pods are routed. Pods of other nodes are
// reached through their node if that is on the same link. If it is not, a gateway has
// a tunnel to the node; on other hosts the site's routers know the way to a gateway.
//
// The route to a pod on another node does not use the tunnel of the pod's network.
// The pod's packets to this host come from its node without a tunnel, and a host that
// filters by reverse path would drop them.
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
			k.warnRouted(s, to, peer.Via)
		}
	}
	if err := s.answerFor(wanted); err != nil {
		return err
	}
	have, err := routesOf(s.families(), &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return err
	}
	// Use one socket for all requests, as in peers.
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("ask for routes: %w", err)
	}
	defer kernel.Close()
	var problems []error
	for _, route := range have {
		want, ok := wanted[route.Dst.String()]
		// An unreachable route in IPv6 has the loopback as its interface.
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

// Led returns the pods of other nodes that routes of a previous daemon lead to. A
// node's subnet of pods is represented by its first address.
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

// alsoIPv6 adds the route to the IPv6 addresses of pods whose IPv4 addresses are in to. It
// sets no source address, so a host without an IPv6 address that pods can answer
// cannot reach them by IPv6.
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

// ownRoutes adds the routes to pods on this host.
func (s State) ownRoutes(wanted map[string]netlink.Route) error {
	if s.Routed != nil && s.Routed.Own.IsValid() && len(s.Networks) > 0 {
		// A packet to an unused address must not go to a router, which would send it
		// back.
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

// answerFor makes a gateway treat the addresses that it gives to pods as its own.
// Then it answers ARP for them on its links, and packets that belong to no connection
// end here (chain input). Otherwise they would go back to where they came from.
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

// checkAs rejects addresses of 'gateways.as' that a host known to this gateway has,
// or that CheckAs rejects.
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

// CheckAs returns an error if an address that pods are to get from this gateway is in
// use. If it is this host's own, the host would drop packets for it. If it belongs to
// one of its routers, the gateway would answer ARP in the router's place.
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

// ownerOf returns an error if an address of the range is one of these own addresses, or
// the next hop of one of these routes.
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

// remote returns all pods on other nodes that this host reaches.
func (s State) remote() []Peer {
	all := slices.Clone(s.Outside)
	for _, n := range s.Networks {
		all = append(all, n.Peers...)
	}
	return all
}

// forwarding enables forwarding on these interfaces, for packets from outside to
// pods, and disables it on the other interfaces where berthd has enabled it. It returns
// the interfaces that did not forward before. A file records each of them, for a
// daemon that is restarted.
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
			// A gateway without this interface counts as unavailable (see Carries), but may
			// have pods.
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

// stopForwarding disables forwarding by netlink. Writing the sysctl file would retry
// to take the kernel's RTNL lock, which is busy for a long time when jobs end. The
// sysctl also flushes the route cache, so stopForwarding does too.
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
