package siteconf

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"berth.dev/berth/internal/job/slurm"
)

// ByRoutes reports whether pods are reached by routes to their nodes, without
// tunnels.
func (c Config) ByRoutes() bool { return len(c.Routed) > 0 }

// Subnets returns each node's own range of addresses for pods. Invalid entries of the
// configuration are left out.
func (c Config) Subnets() map[string]netip.Prefix {
	subnets, _ := c.subnets()
	return subnets
}

// longestSubnet leaves a node at least two addresses: the first and the last address
// of a subnet are not assigned.
const longestSubnet = 30

func (c Config) subnets() (map[string]netip.Prefix, []error) {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	subnets := map[string]netip.Prefix{}
	for _, list := range slices.Sorted(maps.Keys(c.Routed)) {
		first := c.Routed[list]
		if !first.Addr().Is4() || first.Bits() > longestSubnet || first != first.Masked() || !within(first, c.Pods) {
			wrong("routed.%s: %v is not a subnet of pods %v: give the first node's, up to /%d", list, first, c.Pods, longestSubnet)
			continue
		}
		nodes, err := slurm.ExpandHosts(list)
		if err != nil {
			wrong("routed: %w", err)
			continue
		}
		size := uint64(1) << (32 - first.Bits())
		if end := uint64(Number(c.Pods.Masked().Addr())) + 1<<(32-c.Pods.Bits()); uint64(Number(first.Addr()))+size*uint64(len(nodes)) > end {
			wrong("routed.%s: %d subnets from %v on are more than pods %v has", list, len(nodes), first, c.Pods)
			continue
		}
		for i, node := range nodes {
			if _, twice := subnets[node]; twice {
				wrong("routed.%s: %s has a subnet already", list, node)
				continue
			}
			subnets[node] = netip.PrefixFrom(Address(Number(first.Addr())+uint32(size)*uint32(i)), first.Bits())
		}
	}
	return subnets, problems
}

func (c Config) checkRouted() []error {
	if !c.ByRoutes() {
		return nil
	}
	if !c.Pods.IsValid() || !c.Pods.Addr().Is4() {
		// The error was reported before, and nothing can be within an invalid range.
		return nil
	}
	subnets, problems := c.subnets()
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if c.ByCNI() {
		wrong("routed: with 'cni' the plugins give addresses: leave out 'routed', or 'cni'")
	}
	nodes := slices.SortedFunc(maps.Keys(subnets), func(a, b string) int { return subnets[a].Addr().Compare(subnets[b].Addr()) })
	for i := 1; i < len(nodes); i++ {
		if a, b := nodes[i-1], nodes[i]; subnets[a].Overlaps(subnets[b]) {
			wrong("routed: %v of %s and %v of %s overlap", subnets[a], a, subnets[b], b)
		}
	}
	for _, host := range c.LoginOn {
		if _, found := subnets[host]; !found && len(problems) == 0 {
			wrong("routed: %s of login-on has no subnet, and so sessions no addresses", host)
		}
	}
	return problems
}
