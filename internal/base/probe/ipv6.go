package probe

import (
	"fmt"
	"net/netip"
	"strings"
)

// IPv6 reports whether the kernel gives IPv6 to new network namespaces. source
// is the global address that this host uses to send to the outside; the zero
// value if it cannot.
func (h *Host) IPv6() (kernel bool, source netip.Addr) {
	disabled, ok := h.sysctl("net.ipv6.conf.default.disable_ipv6")
	// 1 and 3: a new namespace inherits the host's settings.
	inherit, _ := h.number("net.core.devconf_inherit_init_net")
	if !ok || disabled == "1" && (inherit == 1 || inherit == 3) {
		return false, netip.Addr{}
	}
	// The lowest global unicast address: nobody has it, and only a default
	// route, or one to all that is global, leads there.
	source = h.kernel.SourceTowards(netip.MustParseAddr("2000::1"))
	// A private address (fd00::/8) belongs to the site. Whether it is translated to
	// a global one cannot be seen from here.
	if !source.IsGlobalUnicast() || source.IsPrivate() {
		return true, netip.Addr{}
	}
	return true, source
}

// checkIPv6 reports whether clusters on this machine have IPv6 by default.
func checkIPv6(h *Host, tried outcomes) Result {
	r := Result{Name: "ipv6", Title: "IPv6 to the outside", Level: Optional, OK: Yes}
	kernel, source := h.IPv6()
	switch {
	case !kernel:
		r.OK, r.Found = No, "the kernel has no IPv6, or it is switched off"
		r.Remedy = Remedy{Admin: "boot without ipv6.disable=1, and set net.ipv6.conf.default.disable_ipv6=0"}
	case !source.IsValid():
		r.OK, r.Found = No, "no global address with a default route"
		r.Remedy = Remedy{User: "berth run --ip-family dual   # IPv6 between pods, on all nodes; the outside by IPv4",
			Admin: "give the node a global IPv6 address and a default route"}
	default:
		r.Found = "from " + source.String()
	}
	if r.OK == No {
		r.Cost = "pods and Services have only IPv4 addresses"
		return r
	}
	missing, modules := tried.refused(trialNftables6, proxyExpressions...)
	if table, ok := tried[trialNftables6]; ok && !table.ok() {
		missing = append(missing, fmt.Sprintf("table (%s)", table.Error))
	}
	if len(missing) > 0 {
		for i, module := range modules {
			modules[i] = strings.Replace(module, "ipv4", "ipv6", 1)
		}
		r.OK, r.Found = No, r.Found+", but nftables refuses for IPv6: "+strings.Join(missing, ", ")
		r.Cost = "pods and Services have only IPv4 addresses"
		r.Remedy = Remedy{Admin: loadModules(append(modules, "nf_tables"))}
	}
	return r
}
