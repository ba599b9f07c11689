package policy

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
)

// table is the name of the table, of the family inet, that Ruleset fills.
const table = "berth-policy"

// Ruleset returns a script for nft(8) that makes the kernel of a node enforce the
// State. The script replaces the rules of an earlier script atomically. It is empty if
// none of the node's pods is isolated.
//
// The rules match every packet by the addresses of its connection in conntrack: the
// client, and the endpoint that answers behind a Service. So packets of both
// directions and ICMP errors get the verdict of their connection, and a connection
// that a policy forbids later ends. Packets from the node itself have no chain,
// because a node always reaches its pods.
func (s *State) Ruleset(node string) string {
	r := ruleset{state: s, used: map[int]bool{}}
	ipv4, ipv6 := &family{version: versions[0]}, &family{version: versions[1]}
	for _, address := range s.addresses() {
		pod := s.Pods[address]
		if pod.Node != node || pod.Ingress == nil && pod.Egress == nil {
			continue
		}
		f := ipv6
		if address.Is4() {
			f = ipv4
		}
		f.isolated = append(f.isolated, address.String())
		f.self = append(f.self, address.String()+" . "+address.String())
		f.ingress = r.direct(f.ingress, address, "ingress", pod.Ingress)
		f.egress = r.direct(f.egress, address, "egress", pod.Egress)
	}
	for _, f := range []*family{ipv4, ipv6} {
		if len(f.isolated) > 0 {
			r.families = append(r.families, f)
		}
	}
	if len(r.families) == 0 {
		return ""
	}
	return r.text()
}

// Removal returns the nft script that undoes the script of Ruleset.
func Removal() string { return reset + "delete table inet " + table + "\n" }

// reset lets the deletion after it succeed even if there is no table.
const reset = "add table inet " + table + "\n"

func (s *State) addresses() []netip.Addr {
	all := make([]netip.Addr, 0, len(s.Pods))
	for a := range s.Pods {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

type ruleset struct {
	state    *State
	families []*family // IP versions of isolated pods
	chains   []chain
	used     map[int]bool // indexes of peers that rules name
}

// version is a version of IP.
type version struct {
	name, key string // nft's names of the version and of the type of its addresses
	ipv4      bool
}

var versions = []version{{"ip", "ipv4_addr", true}, {"ip6", "ipv6_addr", false}}

// family holds the elements of the sets and maps for one IP version.
type family struct {
	version
	isolated, self, ingress, egress []string
}

// chain permits the connections of pods that have the same rules.
type chain struct {
	name, peer string
	isolation  *Isolation
}

// direct adds an element to a verdict map, which makes the connections of an address jump to
// the chain of its isolation. It adds nothing if isolation is nil.
func (r *ruleset) direct(verdicts []string, address netip.Addr, direction string, isolation *Isolation) []string {
	if isolation == nil {
		return verdicts
	}
	peer := "original %s saddr"
	if direction == "egress" {
		peer = "reply %s saddr"
	}
	i := slices.IndexFunc(r.chains, func(c chain) bool {
		return c.peer == peer && (c.isolation == isolation || reflect.DeepEqual(c.isolation, isolation))
	})
	if i < 0 {
		i = len(r.chains)
		r.chains = append(r.chains, chain{fmt.Sprintf("%s-%d", direction, i), peer, isolation})
	}
	return append(verdicts, fmt.Sprintf("%s : jump %s", address, r.chains[i].name))
}

func (r *ruleset) text() string {
	var chains strings.Builder
	for _, c := range r.chains {
		fmt.Fprintf(&chains, "\tchain %s {\n", c.name)
		for _, rule := range c.isolation.Rules {
			for _, match := range r.matches(rule, c.peer) {
				fmt.Fprintf(&chains, "\t\t%sreturn\n", match)
			}
		}
		chains.WriteString("\t\tdrop\n\t}\n")
	}

	var out strings.Builder
	out.WriteString(Removal() + "table inet " + table + " {\n")
	for _, f := range r.families {
		for i, peers := range r.state.Peers {
			if r.used[i] {
				out.WriteString(named("set", fmt.Sprintf("peers-%d-%s", i, f.name), "type "+f.key+"; flags interval;", peers.of(f).elements()))
			}
		}
	}
	out.WriteString(chains.String())
	for _, f := range r.families {
		out.WriteString(named("set", "isolated-"+f.name, "type "+f.key+";", f.isolated))
		out.WriteString(named("set", "self-"+f.name, "type "+f.key+" . "+f.key+";", f.self))
		out.WriteString(named("map", "ingress-"+f.name, "type "+f.key+" : verdict;", f.ingress))
		out.WriteString(named("map", "egress-"+f.name, "type "+f.key+" : verdict;", f.egress))
	}
	out.WriteString(r.hooks())
	return out.String()
}

// hooks returns the base chains. Neighbour discovery uses packets without a
// connection, which may pass. Other packets without a connection, such as late
// resets and forged ones, do not reach isolated pods.
func (r *ruleset) hooks() string {
	each := func(line string) string {
		var lines strings.Builder
		for _, f := range r.families {
			lines.WriteString("\t\t" + strings.ReplaceAll(line, "FAMILY", f.name) + "\n")
		}
		return lines.String()
	}
	neighbours := ""
	if slices.ContainsFunc(r.families, func(f *family) bool { return !f.ipv4 }) {
		neighbours = "\t\ticmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } return\n"
	}
	return "\tchain strays {\n" + neighbours +
		each("FAMILY saddr @isolated-FAMILY drop") + each("FAMILY daddr @isolated-FAMILY drop") +
		"\t}\n\tchain leaving {\n" +
		each("ct original FAMILY saddr vmap @egress-FAMILY") +
		"\t}\n\tchain forward {\n" +
		"\t\ttype filter hook forward priority filter; policy accept;\n" +
		"\t\tct state invalid,untracked jump strays\n" +
		each("ct original FAMILY saddr . ct reply FAMILY saddr @self-FAMILY accept") +
		"\t\tjump leaving\n" +
		each("ct reply FAMILY saddr vmap @ingress-FAMILY") +
		"\t}\n\tchain input {\n" +
		"\t\ttype filter hook input priority filter; policy accept;\n" +
		"\t\tct state invalid,untracked jump strays\n" +
		"\t\tjump leaving\n\t}\n}\n"
}

// named returns the definition of a set or map.
func named(what, name, kind string, elements []string) string {
	if len(elements) > 0 {
		kind += " elements = { " + strings.Join(elements, ", ") + " }"
	}
	return fmt.Sprintf("\t%s %s { %s }\n", what, name, kind)
}

// matches returns conditions for a rule. A connection has to meet one of them. In peer, %s
// stands for the IP version.
func (r *ruleset) matches(rule Rule, peer string) []string {
	addresses := []string{""}
	if rule.Peers != anybody {
		r.used[rule.Peers] = true
		addresses = nil
		for _, f := range r.families {
			if len(r.state.Peers[rule.Peers].of(f)) > 0 {
				addresses = append(addresses, fmt.Sprintf("ct "+peer+" @peers-%d-%s ", f.name, rule.Peers, f.name))
			}
		}
	}
	var matches []string
	for _, address := range addresses {
		for _, ports := range portMatches(rule.Ports) {
			matches = append(matches, address+ports)
		}
	}
	return matches
}

func portMatches(ports []Ports) []string {
	if len(ports) == 0 {
		return []string{""}
	}
	names := map[Protocol]string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}
	var matches []string
	for _, protocol := range []Protocol{TCP, UDP, SCTP} {
		var elements []string
		all := false
		for _, p := range joined(ports, protocol) {
			all = all || p.First == 0 && p.Last == 65535
			elements = append(elements, fmt.Sprintf("%d-%d", p.First, p.Last))
		}
		switch {
		case all:
			matches = append(matches, fmt.Sprintf("ct protocol %s ", names[protocol]))
		case len(elements) > 0:
			matches = append(matches, fmt.Sprintf("ct protocol %s ct reply proto-src { %s } ", names[protocol], strings.Join(elements, ", ")))
		}
	}
	return matches
}

// of returns the ranges of a family.
func (rs Ranges) of(f *family) Ranges {
	first6 := slices.IndexFunc(rs, func(r Range) bool { return r.First.Is6() })
	if first6 < 0 {
		first6 = len(rs)
	}
	if f.ipv4 {
		return rs[:first6]
	}
	return rs[first6:]
}

func (rs Ranges) elements() []string {
	var all []string
	for _, r := range rs {
		if r.First == r.Last {
			all = append(all, r.First.String())
			continue
		}
		all = append(all, r.First.String()+"-"+r.Last.String())
	}
	return all
}
