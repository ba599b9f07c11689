package vxlan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
)

// flowsTable is separate from our other rules, which are replaced whenever a pod
// comes or goes. Its counts stay as long as there are pods.
const flowsTable = "berth_flows"

// clearFlows removes the table, whether it exists or not.
const clearFlows = "add table inet " + flowsTable + "\ndelete table inet " + flowsTable + "\n"

// flows returns rules that bound the connections that this host tracks for a pod,
// forwarded or with the host itself. They may be loaded again while loaded; the
// kernel removes set elements without connections.
func (s State) flows() string {
	if s.Flows == 0 {
		return ""
	}
	if len(s.Networks) == 0 {
		return clearFlows
	}
	r := &ruleset{State: s}
	r.line("add table inet %s", flowsTable)
	for _, kind := range s.kinds() {
		for _, name := range []string{"pods", refusedSet} {
			r.line("add set inet %s %s%s { typeof %s saddr; flags dynamic; size 65535; }", flowsTable, name, kind.suffix, kind.header)
		}
	}
	for _, hook := range []string{"input", "forward"} {
		// After the rules that deny: packets that others may not send to a pod do not
		// count for it.
		r.line("add chain inet %s %s { type filter hook %[2]s priority -9; policy accept; }", flowsTable, hook)
		r.line("flush chain inet %s %s", flowsTable, hook)
		if hook == "forward" && s.Routed == nil {
			// If bridges call netfilter (br_netfilter, which Docker enables): packets
			// between pods of a network.
			r.line("add rule inet %s %s iifname %[3]q oifname %[3]q accept", flowsTable, hook, s.podLinks())
		}
		r.countFlows(hook, "iifname", "saddr", "reject with icmpx admin-prohibited")
		if hook == "forward" {
			r.countFlows(hook, "oifname", "daddr", "drop")
		}
	}
	return r.String()
}

// countFlows writes the rules that count the connections of one side, and refuse further
// connections above the bound. Connections of slurmstepd do not count: a job whose programs have
// used up the bound must still end.
func (r *ruleset) countFlows(hook, on, side, over string) {
	for _, kind := range r.kinds() {
		counted := "ct state new"
		if side == "saddr" {
			counted += fmt.Sprintf(" %s dscp != %s", kind.header, stepdCode)
		}
		count := fmt.Sprintf("add @pods%s { %s %s ct count over %d }", kind.suffix, kind.header, side, r.Flows)
		refused := fmt.Sprintf("update @%s%s { %s %s counter }", refusedSet, kind.suffix, kind.header, side)
		r.line("add rule inet %s %s %s %q %s %s %s %s", flowsTable, hook, on, r.podLinks(), counted, count, refused, over)
	}
}

// refusedSet counts the packets that were refused, by the address of the pod.
const refusedSet = "refused"

var refusedCount = regexp.MustCompile(`([0-9a-f.:]+) counter packets ([0-9]+) `)

// Refused returns how many packets of connections above the bound were refused for each pod
// since the first pod came.
func (k *Kernel) Refused(ctx context.Context) (map[netip.Addr]uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	counts := map[netip.Addr]uint64{}
	if k.applied == nil || k.applied.Flows == 0 || len(k.applied.Networks) == 0 {
		return counts, nil
	}
	for _, kind := range k.applied.kinds() {
		out, err := exec.CommandContext(ctx, k.NFT, "-n", "list", "set", "inet", flowsTable, refusedSet+kind.suffix).CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("list refused connections: %w: %s", err, out)
		}
		if err := parseRefused(string(out), counts); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// parseRefused adds the counts that nft has printed.
func parseRefused(text string, counts map[netip.Addr]uint64) error {
	for _, found := range refusedCount.FindAllStringSubmatch(text, -1) {
		address, err1 := netip.ParseAddr(found[1])
		count, err2 := strconv.ParseUint(found[2], 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("read refused connections: %w", err)
		}
		counts[address] = count
	}
	return nil
}
