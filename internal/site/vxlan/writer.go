package vxlan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/site/siteconf"
)

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

// join returns a sorted list without duplicates.
func join(elements []string) string {
	slices.Sort(elements)
	return strings.Join(slices.Compact(elements), ", ")
}
