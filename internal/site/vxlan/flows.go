package vxlan

import "fmt"

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
		r.line("add set inet %s pods%s { typeof %s saddr; flags dynamic; size 65535; }", flowsTable, kind.suffix, kind.header)
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
// connections above the bound.
func (r *ruleset) countFlows(hook, on, side, over string) {
	for _, kind := range r.kinds() {
		count := fmt.Sprintf("add @pods%s { %s %s ct count over %d }", kind.suffix, kind.header, side, r.Flows)
		r.line("add rule inet %s %s %s %q ct state new %s %s", flowsTable, hook, on, r.podLinks(), count, over)
	}
}
