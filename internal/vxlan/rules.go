package vxlan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/site"
)

// table is the name of our tables, in the families bridge and inet.
const table = "berth"

// clearRules is what removes them, whether they are there or not.
const clearRules = `add table bridge berth
delete table bridge berth
add table inet berth
delete table inet berth
`

// rules are the text for 'nft -f' that replaces all of ours at once. Names in
// it are our own, and addresses are printed by netip: nothing that a user wrote
// gets there. opened are the interfaces for which we have turned on forwarding.
func (s State) rules(opened []string) string {
	if !s.active() {
		return clearRules
	}
	var pods, tunnels []string
	for _, n := range s.Networks {
		for _, pod := range n.Local {
			pods = append(pods, fmt.Sprintf("%q . %s . %s", podName(pod.Address), site.MAC(pod.Address), pod.Address))
		}
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
	if s.Routed == nil {
		s.bridges(r, pods)
	}
	r.block("table inet "+table, func() {
		if s.tunnels() {
			r.set("tunnels", "ipv4_addr", tunnels)
		}
		if s.Routed != nil {
			s.routed(r, pods)
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

// bridges: a pod has its own addresses, of both kinds, or says nothing.
func (s State) bridges(r *writer, pods []string) {
	r.block("table bridge "+table, func() {
		r.set("pods", podKind, pods)
		r.block("chain prerouting", func() {
			r.line("type filter hook prerouting priority -300; policy accept;")
			r.line(`iifname != "%sp*" accept`, ownerPrefix)
			r.line("iifname . ether saddr . ip saddr @pods accept")
			r.line("iifname . ether saddr . arp saddr ip @pods iifname . arp saddr ether . arp saddr ip @pods accept")
			r.line("drop")
		})
	})
}

// podKind is that of a set of who a pod is, on which interface.
const podKind = "ifname . ether_addr . ipv4_addr"

// tunnels: there is one, or may be. Where pods are routed, only gateways on other links
// have one.
func (s State) tunnels() bool { return s.Routed == nil || len(s.distant) > 0 }

// podLinks are the interfaces by which this host knows pods, as nft writes them.
func (s State) podLinks() string {
	if s.Routed != nil {
		return ownerPrefix + "p*"
	}
	return ownerPrefix + "b*"
}

// input: to this host, from pods and through tunnels.
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
			r.line("iifname %q ip saddr != %s drop", tunnelName(gatewayTunnel), s.Pods)
		}
		if s.forwards() && s.As.First.IsValid() {
			// Addresses of pods that have gone, or connect from nowhere.
			r.line("ip daddr %s drop", s.As)
		}
	})
	if !s.tunnels() {
		return
	}
	r.block("chain tunnel", func() {
		r.line("ip saddr @tunnels udp sport %d-%d accept", firstSource, lastSource)
		r.line("drop")
	})
}

// forward: between pods and what is neither a pod nor this host. What goes from
// one pod to another of its network never comes here, unless bridges are told to
// ask (br_netfilter, as Docker does).
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
			r.line("ip saddr %s jump outward", s.Pods)
		}
		if len(s.distant) > 0 {
			// By that tunnel come packets of pods to gateways, and to pods from those.
			r.line("iifname %q drop", tunnelName(gatewayTunnel))
		}
		if s.forwards() {
			r.line("ip daddr %s jump inward", s.Pods)
		}
		for _, name := range opened {
			// The host was no router before, and is none for others now.
			r.line("iifname %q drop", name)
		}
	})
	r.block("chain leave", func() {
		s.jumpNetwork(r, "saddr", "to")
		r.line("ip daddr %s ip daddr != %s drop", s.Pods, s.Gateway)
		// Neither may be sent on by the kernel of this host as its own.
		r.line("udp dport %d drop", s.Port)
		r.line("ct state established,related accept")
		s.jump(r, "saddr", "egress")
		r.line("reject with icmpx admin-prohibited")
	})
	r.block("chain arrive", func() {
		s.jumpNetwork(r, "daddr", "from")
		r.line("ip saddr %s drop", s.Pods)
		r.line("ct state established,related accept")
		s.jump(r, "daddr", "ingress")
		r.line("drop")
	})
}

// output: from processes of this host to its pods.
func (s State) output(r *writer) {
	r.block("chain output", func() {
		r.line("type filter hook output priority -10; policy accept;")
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

// jump goes to the rules of the user whose pod has the address on that side. The
// first chain that a packet of a pod meets has seen to it that the pod has its own.
func (s State) jump(r *writer, side, chain string) {
	var all []string
	for _, n := range s.Networks {
		for _, pod := range n.Local {
			all = append(all, fmt.Sprintf("%s : jump %s_%d", pod.Address, chain, pod.Owner))
		}
	}
	if len(all) > 0 {
		r.line("ip %s vmap { %s }", side, join(all))
	}
}

// owners are all users who have pods here, each once: one who has come into a group
// may have jobs in two networks.
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

// join makes a list without doubles, in an order that is always the same.
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

func (w *writer) set(name, kind string, elements []string) {
	w.block("set "+name, func() {
		w.line("type %s", kind)
		if len(elements) > 0 {
			w.line("elements = { %s }", join(elements))
		}
	})
}

// allow writes a line per rule and protocol. side is where the outside address
// is.
func (w *writer) allow(side string, rules []site.Rule) {
	for _, rule := range rules {
		match := "ip " + side + " { " + join(texts(rule.Addresses)) + " }"
		if slices.ContainsFunc(rule.Addresses, func(p netip.Prefix) bool { return p.Bits() == 0 }) {
			match = "meta nfproto ipv4"
		}
		if len(rule.Ports) == 0 {
			w.line("%s accept", match)
		}
		for _, protocol := range []string{"tcp", "udp"} {
			var ports []string
			for _, p := range rule.Ports {
				if p.Protocol == protocol {
					ports = append(ports, fmt.Sprintf("%d-%d", p.First, p.Last))
				}
			}
			if len(ports) > 0 {
				w.line("%s %s dport { %s } accept", match, protocol, join(ports))
			}
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
