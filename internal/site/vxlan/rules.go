package vxlan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

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

// ruleset writes the rules for a State. Each of its methods writes the chains and sets of one
// subject.
type ruleset struct {
	State
	writer
	// opened lists the interfaces where we have enabled forwarding.
	opened []string
}

// rules returns the text for 'nft -f' that replaces all our rules atomically. All
// names in it are ours, and netip prints the addresses: no text from a user gets into
// it. opened lists the interfaces where we have enabled forwarding.
func (s State) rules(opened []string) string {
	r := &ruleset{State: s, opened: opened}
	r.text(clearRules)
	r.text(s.flows())
	if !s.active() {
		r.idle()
		return r.String()
	}
	if s.Routed == nil {
		r.bridges()
	}
	r.block("table inet "+table, func() {
		if s.Routed != nil {
			r.routed()
		}
		r.input()
		r.forward()
		r.distrustMark()
		r.clearMark()
		if s.forwards() {
			r.gateway()
		}
		r.output()
		for _, o := range r.owners() {
			r.block(fmt.Sprintf("chain egress_%d", o.UID), func() { r.allow("daddr", o.Egress) })
			r.block(fmt.Sprintf("chain ingress_%d", o.UID), func() { r.allow("saddr", o.Ingress) })
		}
	})
	return r.String()
}

// idle writes the rules of a host without pods. Such a host also has users, and may
// have routes to pods of other nodes.
func (r *ruleset) idle() {
	if !r.dual() {
		return
	}
	r.block("table inet "+table, func() {
		r.block("chain output", func() {
			r.line("type filter hook output priority -10; policy accept;")
			r.ownSource()
		})
	})
}

// ownSource keeps users of a host from sending with the IPv6 address of a pod, and
// from sending to pods with the IPv6 address of another host. For IPv4 the kernel prevents that. With
// IPV6_FREEBIND, which needs no privilege, a process can send from any IPv6 address.
func (r *ruleset) ownSource() {
	if !r.dual() {
		return
	}
	pods := r.IPv6.Pods.Masked()
	r.line("ip6 saddr %s ip6 saddr != %s drop", pods, r.IPv6.Second(r.Gateway))
	r.line("ip6 daddr %s fib saddr type != local drop", pods)
}

// bridges writes the rules that let a pod send only from its own MAC and IP addresses.
func (r *ruleset) bridges() {
	r.block("table bridge "+table, func() {
		r.podSets()
		r.block("chain prerouting", func() {
			r.line("type filter hook prerouting priority -300; policy accept;")
			r.line(`iifname != "%sp*" accept`, ownerPrefix)
			r.line("iifname . ether saddr . ip saddr @pods accept")
			r.line("iifname . ether saddr . arp saddr ip @pods iifname . arp saddr ether . arp saddr ip @pods accept")
			if r.dual() {
				r.line("iifname . ether saddr . ip6 saddr @pods6 jump ipv6_pods")
			}
			r.line("drop")
		})
		if r.dual() {
			r.ipv6Pods()
		}
	})
}

// ipv6Pods writes the chain for packets from a pod's own IPv6 address. A pod may not act
// as a router in ICMPv6, and may advertise only its own address as a neighbour. nft
// 1.0.6 has no name for the target of an advertisement, which follows 64 bits of
// header. Only the first fragment of a packet has that header, and no kernel accepts
// fragmented neighbour advertisements.
func (r *ruleset) ipv6Pods() {
	r.block("chain ipv6_pods", func() {
		r.line("meta l4proto != ipv6-icmp accept")
		r.line("frag frag-off != 0 accept")
		r.line("icmpv6 type != { nd-router-advert, nd-neighbor-advert, nd-redirect } accept")
		for _, n := range r.Networks {
			for _, pod := range n.Local {
				target := r.IPv6.Second(pod.Address).As16()
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
func (r *ruleset) podSets() {
	for _, kind := range r.kinds() {
		var pods []string
		for _, n := range r.Networks {
			for _, pod := range n.Local {
				pods = append(pods, fmt.Sprintf("%q . %s . %s", podName(pod.Address), siteconf.MAC(pod.Address), kind.of(pod.Address)))
			}
		}
		r.set("pods"+kind.suffix, "iifname . ether saddr . "+kind.header+" saddr", pods)
	}
}

// byPod jumps to the chain of the pod whose address is on that side. Keys consist of
// the address family and the address: nft 1.0.6 can list a map with such keys even if
// a newer nft has made it (see set).
func (r *ruleset) byPod(side string, chain func(Network, Pod) string) {
	for _, kind := range r.kinds() {
		var all []string
		for _, n := range r.Networks {
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

// tunnelEnds accepts packets of a tunnel from hosts at its other ends. The number of the network
// follows the UDP header and 32 bits of VXLAN's header.
func (r *ruleset) tunnelEnds(vni uint32, hosts []string) {
	if len(hosts) > 0 {
		r.line("@th,96,24 %d ip saddr { %s } accept", vni, join(hosts))
	}
}

// podLinks returns the pattern of the interfaces that lead from this host to its
// pods.
func (s State) podLinks() string {
	if s.Routed != nil {
		return ownerPrefix + "p*"
	}
	return ownerPrefix + "b*"
}

// input writes the rules for packets to this host, from pods and through tunnels.
func (r *ruleset) input() {
	r.block("chain input", func() {
		r.line("type filter hook input priority -10; policy accept;")
		if r.tunnels() {
			r.line("udp dport %d jump tunnel", r.Port)
		}
		for _, protocol := range []string{"udp", "tcp"} {
			if r.Names {
				r.line("iifname %q ip daddr %s %s dport 53 accept", r.podLinks(), r.Gateway, protocol)
			}
		}
		r.line("iifname %q jump leave", r.podLinks())
		if len(r.distant) > 0 {
			for _, kind := range r.kinds() {
				r.line("iifname %q %s saddr != %s drop", tunnelName(gatewayTunnel), kind.header, kind.pods)
			}
		}
		if r.forwards() && r.As.First.IsValid() {
			// Drop packets for pods that are gone, and packets of no connection.
			r.line("ip daddr %s drop", r.As)
		}
	})
	if !r.tunnels() {
		return
	}
	r.block("chain tunnel", func() {
		r.line("udp sport != %d-%d drop", firstSource, LastSource)
		if r.Routed == nil {
			for _, n := range r.Networks {
				var nodes []string
				for _, peer := range n.Peers {
					nodes = append(nodes, peer.Via.String())
				}
				r.tunnelEnds(n.VNI, nodes)
			}
		}
		var hosts []string
		for _, host := range r.distant {
			hosts = append(hosts, host.String())
		}
		r.tunnelEnds(gatewayTunnel, hosts)
		r.line("drop")
	})
}

// forward writes the rules for packets between pods and anything that is neither a
// pod nor this host. Packets between two pods of a network do not pass here, unless
// bridges call netfilter (br_netfilter, which Docker enables).
func (r *ruleset) forward() {
	r.block("chain forward", func() {
		r.line("type filter hook forward priority -10; policy accept;")
		for _, n := range r.Networks {
			if r.Routed == nil {
				r.line("iifname %q oifname %q accept", bridgeName(n.VNI), bridgeName(n.VNI))
			}
		}
		r.line("iifname %q jump leave", r.podLinks())
		r.line("oifname %q jump arrive", r.podLinks())
		if r.forwards() {
			for _, kind := range r.kinds() {
				r.line("%s saddr %s jump outward", kind.header, kind.pods)
			}
		}
		if len(r.distant) > 0 {
			// This tunnel only carries packets from pods to gateways, and from
			// gateways to pods.
			r.line("iifname %q drop", tunnelName(gatewayTunnel))
		}
		if r.forwards() {
			for _, kind := range r.kinds() {
				r.line("%s daddr %s jump inward", kind.header, kind.pods)
			}
		}
		for _, name := range r.opened {
			// The host was no router before, and still is none for other traffic.
			r.line("iifname %q drop", name)
		}
		if r.opened6 {
			r.line("meta nfproto ipv6 drop")
		}
	})
	r.block("chain leave", func() {
		r.jumpNetwork("saddr", "to")
		for _, kind := range r.kinds() {
			r.line("%[1]s daddr %[2]s %[1]s daddr != %[3]s drop", kind.header, kind.pods, kind.of(r.Gateway))
		}
		// The kernel of this host must not forward VXLAN packets from a pod as its
		// own.
		r.line("udp dport %d drop", r.Port)
		r.line("ct state established,related accept")
		r.ofStepd()
		r.jump("saddr", "egress")
		r.line("reject with icmpx admin-prohibited")
	})
	r.block("chain arrive", func() {
		r.jumpNetwork("daddr", "from")
		for _, kind := range r.kinds() {
			r.line("%s saddr %s drop", kind.header, kind.pods)
		}
		r.line("ct state established,related accept")
		r.jump("daddr", "ingress")
		r.line("drop")
	})
}

// output writes the rules for packets from processes of this host to its pods.
func (r *ruleset) output() {
	r.block("chain output", func() {
		r.line("type filter hook output priority -10; policy accept;")
		r.ownSource()
		r.line("oifname %q jump local", r.podLinks())
	})
	r.block("chain local", func() {
		r.line("ct state established,related accept")
		daemons := []string{"0"}
		for _, uid := range r.Daemons {
			daemons = append(daemons, fmt.Sprint(uid))
		}
		r.line("meta skuid { %s } accept", join(daemons))
		var owners []string
		for _, n := range r.Networks {
			for _, o := range n.Owners {
				if r.Routed == nil {
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
func (r *ruleset) jump(side, chain string) {
	r.byPod(side, func(_ Network, pod Pod) string { return fmt.Sprintf("%s_%d", chain, pod.Owner) })
}

// owners returns all users who have pods here, each once: a user who has joined a
// group may have jobs in two networks.
func (r *ruleset) owners() []Owner {
	all := Network{}
	for _, n := range r.Networks {
		for _, o := range n.Owners {
			all.Own(o)
		}
	}
	slices.SortFunc(all.Owners, func(a, b Owner) int { return cmp.Compare(a.UID, b.UID) })
	return all.Owners
}
