package vxlan

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
)

// rulePriority is the priority of berthd's routing rules: after the local table, before the main
// table.
const rulePriority = 9898

// table returns the routing table for a pod's packets to the outside. Its number is
// the address of the pod's gateway, which no other table uses, because the address
// belongs to a host. If the gateway is this host, it is the main table. Without a
// gateway it is the table that leads nowhere, with the first address of the range of
// pods as its number, which is no host's.
func (s State) table(pod Pod) int {
	switch {
	case pod.Gateway == s.Host:
		return unix.RT_TABLE_MAIN
	case pod.Gateway.IsValid():
		return int(siteconf.Number(pod.Gateway))
	}
	return int(siteconf.Number(s.Pods.Masked().Addr()))
}

// gateways makes the rules and tables that route pods to the outside. All packets of a pod use
// one gateway, until its gateway changes. A route with several next hops would redistribute a
// pod's connections when one hop disappears, and so break connections through live gateways.
func (k *Kernel) gateways(s State, uplink, far netlink.Link) error {
	rules := map[netip.Prefix]int{}
	tables := map[int]netip.Addr{}
	for _, n := range s.Networks {
		for _, pod := range n.Local {
			if len(s.OutsideNetworks) == 0 {
				continue
			}
			table := s.table(pod)
			for _, address := range s.addresses(pod.Address) {
				rules[netip.PrefixFrom(address, address.BitLen())] = table
			}
			if table != unix.RT_TABLE_MAIN {
				tables[table] = pod.Gateway
			}
		}
	}
	wanted := map[tableRoute]netlink.Route{}
	for table, gateway := range tables {
		for _, route := range s.gatewayRoutes(table, gateway, uplink, far) {
			wanted[keyOf(route)] = route
		}
	}
	// Fill the tables that rules refer to, then set the rules, then empty unused tables.
	extra, err := addRoutes(wanted, s.families())
	if err != nil {
		return err
	}
	if err := setRules(rules, s.families()); err != nil {
		return err
	}
	var problems []error
	for _, route := range extra {
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			problems = append(problems, fmt.Errorf("remove route to %s in table %d: %w", route.Dst, route.Table, err))
		}
	}
	return errors.Join(problems...)
}

// gatewayRoutes returns the routes to one gateway. The main table routes pods and hosts, even if the
// outside networks include their addresses.
func (s State) gatewayRoutes(table int, gateway netip.Addr, uplink, far netlink.Link) []netlink.Route {
	routes := []netlink.Route{
		{Table: table, Dst: prefixOf(s.Pods), Type: unix.RTN_THROW, Protocol: protocol},
		{Table: table, Dst: prefixOf(s.Hosts), Type: unix.RTN_THROW, Protocol: protocol},
	}
	for _, inside := range []netip.Prefix{s.IPv6.Pods, s.IPv6.Hosts} {
		if inside.IsValid() {
			routes = append(routes, netlink.Route{Table: table, Dst: prefixOf(inside), Type: unix.RTN_THROW, Protocol: protocol})
		}
	}
	if far != nil {
		// A gateway answers pods through the tunnel. With a reverse path filter it would drop
		// their packets if they came another way.
		for _, host := range s.distant {
			routes = append(routes, netlink.Route{Table: table, Dst: single(host), Type: unix.RTN_UNICAST, Protocol: protocol, LinkIndex: far.Attrs().Index, Gw: host.AsSlice(), Flags: int(netlink.FLAG_ONLINK)})
		}
	}
	for _, network := range s.OutsideNetworks {
		for _, prefix := range network.Addresses {
			route := netlink.Route{Table: table, Dst: prefixOf(prefix), Type: unix.RTN_UNREACHABLE, Protocol: protocol}
			if gateway.IsValid() {
				hop := gateway
				if prefix.Addr().Is6() {
					hop = siteconf.NextHop(gateway)
				}
				route.Type, route.LinkIndex, route.Gw = unix.RTN_UNICAST, uplink.Attrs().Index, hop.AsSlice()
				if far != nil && slices.Contains(s.distant, gateway) {
					route.LinkIndex, route.Flags = far.Attrs().Index, int(netlink.FLAG_ONLINK)
				}
			}
			routes = append(routes, route)
		}
	}
	return routes
}

// tableRoute identifies a route: there is one for each table and destination.
type tableRoute struct {
	table int
	to    string
}

func keyOf(r netlink.Route) tableRoute { return tableRoute{r.Table, r.Dst.String()} }

// addRoutes adds the wanted routes, and returns berthd's other routes in the tables of gateways.
func addRoutes(wanted map[tableRoute]netlink.Route, families []int) ([]netlink.Route, error) {
	have, err := routesOf(families, &netlink.Route{Protocol: protocol, Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, err
	}
	var extra []netlink.Route
	for _, route := range have {
		if route.Table == unix.RT_TABLE_MAIN || route.Table == unix.RT_TABLE_LOCAL {
			continue
		}
		want, ok := wanted[keyOf(route)]
		switch {
		case ok && want.Type == route.Type && want.Gw.Equal(route.Gw) && (want.LinkIndex == route.LinkIndex || want.Type != unix.RTN_UNICAST):
			delete(wanted, keyOf(route))
		case !ok:
			extra = append(extra, route)
		}
	}
	var problems []error
	for _, route := range wanted {
		if err := netlink.RouteReplace(&route); err != nil {
			problems = append(problems, fmt.Errorf("add route to %s through gateway %s: %w", route.Dst, route.Gw, err))
		}
	}
	return extra, errors.Join(problems...)
}

// ourRules returns the rules with berthd's protocol number, which netlink cannot filter by.
func ourRules(families []int) ([]netlink.Rule, error) {
	var all []netlink.Rule
	for _, family := range families {
		of, err := netlink.RuleList(family)
		if err != nil {
			return nil, fmt.Errorf("list rules of routing: %w", err)
		}
		all = append(all, of...)
	}
	return slices.DeleteFunc(all, func(r netlink.Rule) bool { return r.Protocol != protocol || r.Src == nil }), nil
}

func setRules(wanted map[netip.Prefix]int, families []int) error {
	have, err := ourRules(families)
	if err != nil {
		return err
	}
	var extra []netlink.Rule
	for _, rule := range have {
		pod, err := netip.ParsePrefix(rule.Src.String())
		if err == nil && wanted[pod] == rule.Table {
			delete(wanted, pod)
		} else {
			extra = append(extra, rule)
		}
	}
	var problems []error
	for pod, table := range wanted {
		rule := netlink.NewRule()
		rule.Family, rule.Src, rule.Table, rule.Priority, rule.Protocol = familyOf(pod.Addr()), prefixOf(pod), table, rulePriority, protocol
		if err := netlink.RuleAdd(rule); err != nil {
			problems = append(problems, fmt.Errorf("add rule of routing for pod %s: %w", pod.Addr(), err))
		}
	}
	for _, rule := range extra {
		if err := netlink.RuleDel(&rule); err != nil && !errors.Is(err, unix.ENOENT) {
			problems = append(problems, fmt.Errorf("remove rule of routing for pod %s: %w", rule.Src, err))
		}
	}
	return errors.Join(problems...)
}

// Chosen returns the gateways that a previous daemon gave to pods of this node, keyed by the
// IPv4 address of the pod. Gateways outside of hosts are left out.
func (k *Kernel) Chosen(host netip.Addr, hosts netip.Prefix) (map[netip.Addr]netip.Addr, error) {
	rules, err := ourRules([]int{netlink.FAMILY_V4})
	if err != nil {
		return nil, err
	}
	chosen := map[netip.Addr]netip.Addr{}
	for _, rule := range rules {
		pod, _ := netip.AddrFromSlice(rule.Src.IP.To4())
		gateway := siteconf.Address(uint32(rule.Table))
		if rule.Table == unix.RT_TABLE_MAIN {
			gateway = host
		}
		if hosts.Contains(gateway) {
			chosen[pod] = gateway
		}
	}
	return chosen, nil
}

// beyondLink returns the hosts on other links, in order: the gateways, and on a gateway also the
// nodes of the pods that it serves. Between them and this host there must be a tunnel. own lists
// the addresses of this host's interface to the hosts.
func (s State) beyondLink(own []netlink.Addr) []netip.Addr {
	all := slices.Clone(s.Gateways)
	if s.forwards() {
		for _, peer := range s.remote() {
			all = append(all, peer.Via)
		}
	}
	all = slices.DeleteFunc(all, func(host netip.Addr) bool {
		return host == s.Host || slices.ContainsFunc(own, func(a netlink.Addr) bool { return a.Contains(host.AsSlice()) })
	})
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// distant makes the tunnel to gateways, or nodes, on other links, because the routers between
// have no routes to pods. It returns nil if there are no such hosts.
func (k *Kernel) distant(s State, mtu int) (netlink.Link, error) {
	if len(s.distant) == 0 {
		return nil, nil
	}
	want := s.vxlan(gatewayTunnel, mtu)
	want.HardwareAddr = siteconf.MAC(s.Host)
	link, err := ensure(want)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(setting("ipv4/conf/"+want.Name+"/forwarding", "1"), s.setIPv6(want.Name)); err != nil {
		return nil, fmt.Errorf("configure tunnel %s: %w", want.Name, err)
	}
	if err := s.startTunnel(link); err != nil {
		return nil, err
	}
	var peers []Peer
	for _, host := range s.distant {
		peers = append(peers, Peer{Address: host, Via: host})
	}
	return link, k.peers(s, peers, link, false)
}

// Carries returns an error if an interface of a gateway is missing or has no link.
func Carries(host netip.Addr, interfaces []string) error {
	uplink, _, err := uplinkOf(host)
	if err != nil {
		return err
	}
	links := []netlink.Link{uplink}
	for _, name := range interfaces {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("look at interface %s: %w: correct 'gateways.interfaces' in the configuration", name, err)
		}
		links = append(links, link)
	}
	for _, link := range links {
		// A tunnel or dummy interface reports neither up nor down.
		if state := link.Attrs().OperState; link.Attrs().Flags&net.FlagUp == 0 || state == netlink.OperDown || state == netlink.OperLowerLayerDown {
			return fmt.Errorf("interface %s has no link (%s)", link.Attrs().Name, state)
		}
	}
	return nil
}

// gateway writes the rules of a gateway. The pod's node decides about connections in both
// directions, because both directions of a connection pass there, through any gateways. The
// rules here only prevent other forwarding.
func (r *ruleset) gateway() {
	networks := r.longestFirst()
	r.block("chain outward", func() {
		for _, name := range r.Interfaces {
			// No packet of a pod comes from outside: they come through the hosts' link.
			r.line("iifname %q drop", name)
		}
		for _, kind := range r.kinds() {
			r.line("%s daddr { %s } drop", kind.header, r.inside(kind))
		}
		r.line("udp dport %d drop", r.Port)
		for _, n := range networks {
			r.line("%s accept", matching("daddr", n.prefix))
		}
		r.line("reject with icmpx admin-prohibited")
	})
	r.block("chain inward", func() {
		for _, kind := range r.kinds() {
			r.line("%s saddr %s drop", kind.header, kind.pods.Masked())
		}
		for _, name := range r.Interfaces {
			// No packet of a host comes from outside.
			r.line("iifname %q ip saddr %s drop", name, r.Hosts.Masked())
			if r.IPv6.Hosts.IsValid() {
				r.line("iifname %q ip6 saddr %s drop", name, r.IPv6.Hosts.Masked())
			}
		}
		for _, n := range networks {
			r.line("%s accept", matching("saddr", n.prefix))
		}
		r.line("drop")
	})
	r.block("chain postrouting", func() {
		r.line("type nat hook postrouting priority 100; policy accept;")
		for _, kind := range r.kinds() {
			r.line("%s saddr != %s accept", kind.header, kind.pods.Masked())
			r.line("%s daddr { %s } accept", kind.header, r.inside(kind))
		}
		for _, n := range networks {
			verdict := "accept"
			switch {
			case n.nat && r.As.First.IsValid() && n.prefix.Addr().Is4():
				// All connections of a pod have the same address while it lives.
				verdict = fmt.Sprintf("snat ip to %s persistent", r.As)
			case n.nat:
				verdict = "masquerade"
			}
			r.line("%s %s", matching("daddr", n.prefix), verdict)
		}
	})
}

// inside returns the networks that gateways do not serve.
func (r *ruleset) inside(of kind) string {
	all := []string{of.pods.Masked().String()}
	for _, hosts := range []netip.Prefix{r.Hosts, r.IPv6.Hosts} {
		if hosts.IsValid() && hosts.Addr().Is4() == of.pods.Addr().Is4() {
			all = append(all, hosts.Masked().String())
		}
	}
	return join(all)
}

// matching returns the nft expression for packets whose address on that side, saddr or daddr, is
// in the prefix. For a prefix of length 0 it is the address family.
func matching(side string, prefix netip.Prefix) string {
	switch {
	case prefix.Bits() > 0:
		return header(prefix) + " " + side + " " + prefix.String()
	case prefix.Addr().Is6():
		return "meta nfproto ipv6"
	}
	return "meta nfproto ipv4"
}

// header returns nft's name of the IP header of the prefix's family.
func header(prefix netip.Prefix) string {
	if prefix.Addr().Is6() {
		return "ip6"
	}
	return "ip"
}

type outsidePrefix struct {
	prefix netip.Prefix
	nat    bool
}

// longestFirst returns the outside networks from the longest prefix to the shortest, so that the
// first match is the right one.
func (r *ruleset) longestFirst() []outsidePrefix {
	var all []outsidePrefix
	for _, network := range r.OutsideNetworks {
		for _, prefix := range network.Addresses {
			all = append(all, outsidePrefix{prefix.Masked(), network.NAT})
		}
	}
	slices.SortFunc(all, func(a, b outsidePrefix) int {
		return cmp.Or(cmp.Compare(b.prefix.Bits(), a.prefix.Bits()), a.prefix.Addr().Compare(b.prefix.Addr()))
	})
	return all
}

func prefixOf(p netip.Prefix) *net.IPNet {
	p = p.Masked()
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
