package vxlan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/site/siteconf"
)

// table is the name of our tables, in the families bridge and inet.
const table = "berth"

// clearRules removes our tables, whether they exist or not.
const clearRules = `add table bridge berth
delete table bridge berth
add table inet berth
delete table inet berth
`

// rules returns the text for 'nft -f' that replaces all our rules atomically. All
// names in it are ours, and netip prints the addresses: no text from a user gets into
// it. opened lists the interfaces where we have enabled forwarding.
func (s State) rules(opened []string) string {
	if !s.active() {
		return clearRules + s.flows() + s.idle()
	}
	var tunnels []string
	for _, n := range s.Networks {
		for _, peer := range n.Peers {
			if s.Routed == nil {
				tunnels = append(tunnels, peer.Via.String())
			}
		}
	}
	for _, host := range s.distant {
		tunnels = append(tunnels, host.String())
	}
	r := &writer{}
	r.text(clearRules)
	r.text(s.flows())
	if s.Routed == nil {
		s.bridges(r)
	}
	r.block("table inet "+table, func() {
		if s.tunnels() {
			r.set("tunnels", "ip saddr", tunnels)
		}
		if s.Routed != nil {
			s.routed(r)
		}
		s.input(r)
		s.forward(r, opened)
		if s.forwards() {
			s.gateway(r)
		}
		s.output(r)
		for _, o := range s.owners() {
			r.block(fmt.Sprintf("chain egress_%d", o.UID), func() { r.allow("daddr", o.Egress) })
			r.block(fmt.Sprintf("chain ingress_%d", o.UID), func() { r.allow("saddr", o.Ingress) })
		}
	})
	return r.String()
}

// idle returns the rules of a host without pods. It also has users, and may route to
// pods elsewhere.
func (s State) idle() string {
	if !s.dual() {
		return ""
	}
	r := &writer{}
	r.block("table inet "+table, func() {
		r.block("chain output", func() {
			r.line("type filter hook output priority -10; policy accept;")
			s.ownSource(r)
		})
	})
	return r.String()
}

// ownSource keeps users of a host from sending with the address of a pod, or to pods
// with the address of another host. For IPv4 the kernel prevents that. With
// IPV6_FREEBIND, which needs no privilege, a process can send from any IPv6 address.
func (s State) ownSource(r *writer) {
	if !s.dual() {
		return
	}
	pods := s.IPv6.Pods.Masked()
	r.line("ip6 saddr %s ip6 saddr != %s drop", pods, s.IPv6.Second(s.Gateway))
	r.line("ip6 daddr %s fib saddr type != local drop", pods)
}

// bridges writes the rules that a pod may send only from its own addresses, of both
// families.
func (s State) bridges(r *writer) {
	r.block("table bridge "+table, func() {
		s.podSets(r)
		r.block("chain prerouting", func() {
			r.line("type filter hook prerouting priority -300; policy accept;")
			r.line(`iifname != "%sp*" accept`, ownerPrefix)
			r.line("iifname . ether saddr . ip saddr @pods accept")
			r.line("iifname . ether saddr . arp saddr ip @pods iifname . arp saddr ether . arp saddr ip @pods accept")
			if s.dual() {
				r.line("iifname . ether saddr . ip6 saddr @pods6 jump ipv6_pods")
			}
			r.line("drop")
		})
		if s.dual() {
			s.ipv6Pods(r)
		}
	})
}

// ipv6Pods writes the chain for packets from a pod's own IPv6 address. A pod may not act
// as a router in ICMPv6, and may advertise only its own address as a neighbour. nft
// 1.0.6 has no name for the target of an advertisement, which follows 64 bits of
// header. Only the first fragment of a packet has that header, and no kernel accepts
// fragmented neighbour advertisements.
func (s State) ipv6Pods(r *writer) {
	r.block("chain ipv6_pods", func() {
		r.line("meta l4proto != ipv6-icmp accept")
		r.line("frag frag-off != 0 accept")
		r.line("icmpv6 type != { nd-router-advert, nd-neighbor-advert, nd-redirect } accept")
		for _, n := range s.Networks {
			for _, pod := range n.Local {
				target := s.IPv6.Second(pod.Address).As16()
				r.line("iifname %q icmpv6 type nd-neighbor-advert @th,64,128 0x%x accept", podName(pod.Address), target[:])
			}
		}
		r.line("drop")
	})
}

// kind describes an address family, as nft writes it. suffix ends the names of its
// sets, pods is the range of pods, and of maps a pod's IPv4 address to its address in
// this family.
type kind struct {
	header, family, suffix string
	pods                   netip.Prefix
	of                     func(netip.Addr) netip.Addr
}

// kinds returns the address families that pods have.
func (s State) kinds() []kind {
	four := kind{"ip", "ipv4", "", s.Pods, func(a netip.Addr) netip.Addr { return a }}
	if s.dual() {
		return []kind{four, {"ip6", "ipv6", "6", s.IPv6.Pods.Masked(), s.IPv6.Second}}
	}
	return []kind{four}
}

// podSets writes the sets that map an interface to the addresses of its pod.
func (s State) podSets(r *writer) {
	for _, kind := range s.kinds() {
		var pods []string
		for _, n := range s.Networks {
			for _, pod := range n.Local {
				pods = append(pods, fmt.Sprintf("%q . %s . %s", podName(pod.Address), siteconf.MAC(pod.Address), kind.of(pod.Address)))
			}
		}
		r.set("pods"+kind.suffix, "iifname . ether saddr . "+kind.header+" saddr", pods)
	}
}

// byPod jumps to the chain of the pod whose address is on that side. Naming the
// address family makes keys of two parts, for nft 1.0.6, as in set: it can list such
// a map after a newer nft has made it.
func (s State) byPod(r *writer, side string, chain func(Network, Pod) string) {
	for _, kind := range s.kinds() {
		var all []string
		for _, n := range s.Networks {
			for _, pod := range n.Local {
				all = append(all, fmt.Sprintf("%s . %s : jump %s", kind.family, kind.of(pod.Address), chain(n, pod)))
			}
		}
		if len(all) > 0 {
			r.line("meta nfproto . %s %s vmap { %s }", kind.header, side, join(all))
		}
	}
}

// tunnels reports whether this host uses tunnels. If pods are routed, only gateways
// on other links do.
func (s State) tunnels() bool { return s.Routed == nil || len(s.distant) > 0 }

// podLinks returns the pattern of the interfaces that lead from this host to its
// pods.
func (s State) podLinks() string {
	if s.Routed != nil {
		return ownerPrefix + "p*"
	}
	return ownerPrefix + "b*"
}

// input writes the rules for packets to this host, from pods and through tunnels.
func (s State) input(r *writer) {
	r.block("chain input", func() {
		r.line("type filter hook input priority -10; policy accept;")
		if s.tunnels() {
			r.line("udp dport %d jump tunnel", s.Port)
		}
		for _, protocol := range []string{"udp", "tcp"} {
			if s.Names {
				r.line("iifname %q ip daddr %s %s dport 53 accept", s.podLinks(), s.Gateway, protocol)
			}
		}
		r.line("iifname %q jump leave", s.podLinks())
		if len(s.distant) > 0 {
			for _, kind := range s.kinds() {
				r.line("iifname %q %s saddr != %s drop", tunnelName(gatewayTunnel), kind.header, kind.pods)
			}
		}
		if s.forwards() && s.As.First.IsValid() {
			// Packets for pods that are gone, or that belong to no connection.
			r.line("ip daddr %s drop", s.As)
		}
	})
	if !s.tunnels() {
		return
	}
	r.block("chain tunnel", func() {
		r.line("ip saddr @tunnels udp sport %d-%d accept", firstSource, LastSource)
		r.line("drop")
	})
}

// forward writes the rules for packets between pods and anything that is neither a
// pod nor this host. Packets between two pods of a network do not pass here, unless
// bridges call netfilter (br_netfilter, which Docker enables).
func (s State) forward(r *writer, opened []string) {
	r.block("chain forward", func() {
		r.line("type filter hook forward priority -10; policy accept;")
		for _, n := range s.Networks {
			if s.Routed == nil {
				r.line("iifname %q oifname %q accept", bridgeName(n.VNI), bridgeName(n.VNI))
			}
		}
		r.line("iifname %q jump leave", s.podLinks())
		r.line("oifname %q jump arrive", s.podLinks())
		if s.forwards() {
			for _, kind := range s.kinds() {
				r.line("%s saddr %s jump outward", kind.header, kind.pods)
			}
		}
		if len(s.distant) > 0 {
			// This tunnel only carries packets from pods to gateways, and from
			// gateways to pods.
			r.line("iifname %q drop", tunnelName(gatewayTunnel))
		}
		if s.forwards() {
			for _, kind := range s.kinds() {
				r.line("%s daddr %s jump inward", kind.header, kind.pods)
			}
		}
		for _, name := range opened {
			// The host was no router before, and still is none for other traffic.
			r.line("iifname %q drop", name)
		}
		if s.opened6 {
			r.line("meta nfproto ipv6 drop")
		}
	})
	r.block("chain leave", func() {
		s.jumpNetwork(r, "saddr", "to")
		for _, kind := range s.kinds() {
			r.line("%[1]s daddr %[2]s %[1]s daddr != %[3]s drop", kind.header, kind.pods, kind.of(s.Gateway))
		}
		// The kernel of this host must not forward VXLAN packets from a pod as its
		// own.
		r.line("udp dport %d drop", s.Port)
		r.line("ct state established,related accept")
		s.jump(r, "saddr", "egress")
		r.line("reject with icmpx admin-prohibited")
	})
	r.block("chain arrive", func() {
		s.jumpNetwork(r, "daddr", "from")
		for _, kind := range s.kinds() {
			r.line("%s saddr %s drop", kind.header, kind.pods)
		}
		r.line("ct state established,related accept")
		s.jump(r, "daddr", "ingress")
		r.line("drop")
	})
}

// output writes the rules for packets from processes of this host to its pods.
func (s State) output(r *writer) {
	r.block("chain output", func() {
		r.line("type filter hook output priority -10; policy accept;")
		s.ownSource(r)
		r.line("oifname %q jump local", s.podLinks())
	})
	r.block("chain local", func() {
		r.line("ct state established,related accept")
		daemons := []string{"0"}
		for _, uid := range s.Daemons {
			daemons = append(daemons, fmt.Sprint(uid))
		}
		r.line("meta skuid { %s } accept", join(daemons))
		var owners []string
		for _, n := range s.Networks {
			for _, o := range n.Owners {
				if s.Routed == nil {
					owners = append(owners, fmt.Sprintf("%q . %d", bridgeName(n.VNI), o.UID))
					continue
				}
				for _, pod := range n.Local {
					owners = append(owners, fmt.Sprintf("%q . %d", podName(pod.Address), o.UID))
				}
			}
		}
		if len(owners) > 0 {
			r.line("oifname . meta skuid { %s } accept", join(owners))
		}
		r.line("reject with icmpx admin-prohibited")
	})
}

// jump jumps to the rules of the user whose pod has the address on that side. An
// earlier chain has already checked that the pod uses its own address.
func (s State) jump(r *writer, side, chain string) {
	s.byPod(r, side, func(_ Network, pod Pod) string { return fmt.Sprintf("%s_%d", chain, pod.Owner) })
}

// owners returns all users who have pods here, each once: a user who has joined a
// group may have jobs in two networks.
func (s State) owners() []Owner {
	all := Network{}
	for _, n := range s.Networks {
		for _, o := range n.Owners {
			all.Own(o)
		}
	}
	slices.SortFunc(all.Owners, func(a, b Owner) int { return cmp.Compare(a.UID, b.UID) })
	return all.Owners
}

// join returns a sorted list without duplicates.
func join(elements []string) string {
	slices.Sort(elements)
	return strings.Join(slices.Compact(elements), ", ")
}

// writer writes text with indentation.
type writer struct {
	strings.Builder
	depth int
}

func (w *writer) text(s string) { w.WriteString(s) }

func (w *writer) line(format string, args ...any) {
	w.WriteString(strings.Repeat("\t", w.depth))
	fmt.Fprintf(w, format, args...)
	w.WriteByte('\n')
}

func (w *writer) block(head string, body func()) {
	w.line("%s {", head)
	w.depth++
	body()
	w.depth--
	w.line("}")
}

// set writes a set whose elements have the type of the expression like. It uses
// "typeof", because nft 1.0.6 crashes (SIGSEGV) on any listing if a newer nft has
// made a set with "type".
func (w *writer) set(name, like string, elements []string) {
	w.block("set "+name, func() {
		w.line("typeof %s", like)
		if len(elements) > 0 {
			w.line("elements = { %s }", join(elements))
		}
	})
}

// allow writes a line for each rule and protocol. side is the side of the outside
// address.
func (w *writer) allow(side string, rules []siteconf.Rule) {
	for _, rule := range rules {
		ipv6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
		ipv4 := func(p netip.Prefix) bool { return p.Addr().Is4() }
		w.allowOne(anyOf(side, slices.DeleteFunc(slices.Clone(rule.Addresses), ipv6)), rule.Ports)
		w.allowOne(anyOf(side, slices.DeleteFunc(slices.Clone(rule.Addresses), ipv4)), rule.Ports)
	}
}

// anyOf returns a match for addresses of one family, or "" if there are none.
func anyOf(side string, prefixes []netip.Prefix) string {
	for _, p := range prefixes {
		if p.Bits() == 0 {
			return matching(side, p)
		}
	}
	if len(prefixes) == 0 {
		return ""
	}
	return header(prefixes[0]) + " " + side + " { " + join(texts(prefixes)) + " }"
}

func (w *writer) allowOne(match string, allowed []siteconf.Port) {
	if match == "" {
		return
	}
	if len(allowed) == 0 {
		w.line("%s accept", match)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		var ports []string
		for _, p := range allowed {
			if p.Protocol == protocol {
				ports = append(ports, fmt.Sprintf("%d-%d", p.First, p.Last))
			}
		}
		if len(ports) > 0 {
			w.line("%s %s dport { %s } accept", match, protocol, join(ports))
		}
	}
}

func texts(prefixes []netip.Prefix) []string {
	all := make([]string, len(prefixes))
	for i, p := range prefixes {
		all[i] = p.Masked().String()
	}
	return all
}
