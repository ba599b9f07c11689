package probe

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
)

func checkNetwork(h *Host, tried outcomes) []Result {
	links := tried.answer(Result{Name: "bridge-veth", Title: "bridge and veth devices", Level: Required,
		Cost:   "pods have no network",
		Remedy: Remedy{Admin: "modprobe -a bridge veth && printf 'bridge\\nveth\\n' > /etc/modules-load.d/berth.conf"},
	}, trialLinks, "made", trialNetNS)

	forwarding := tried.answer(Result{Name: "ip-forwarding", Title: "IP forwarding", Level: Required,
		Cost:   "packets do not pass between pods and the outside",
		Remedy: Remedy{Admin: "leave /proc/sys writable for user namespaces (a container covers it?)"},
	}, trialForwarding, "switched on in a namespace", trialNetNS)

	tunRemedy := Remedy{Admin: "modprobe tun && echo tun > /etc/modules-load.d/berth.conf && chmod 0666 /dev/net/tun"}
	if h.exists("/dev/net/tun") && tried[trialTUN].Errno == unix.EACCES {
		tunRemedy.Admin = "chmod 0666 /dev/net/tun   # safe: making a device still needs rights in a network namespace"
	}
	tun := tried.answer(Result{Name: "tun", Title: "TUN devices", Level: Required,
		Cost: "pods reach nothing outside of their node", Remedy: tunRemedy,
	}, trialTUN, "/dev/net/tun opens, a device with offloads was made", trialNetNS)
	return []Result{links, forwarding, tun, checkNftables(tried), checkPodShares(tried)}
}

// nftModules are the kernel modules behind the expressions that were tried.
var nftModules = map[string]string{
	"ct": "nft_ct", "reject": "nft_reject_ipv4", "numgen": "nft_numgen", "fib": "nft_fib_ipv4",
	"dnat": "nft_nat", "masquerade": "nft_masq", "connlimit": "nft_connlimit", "limit": "nft_limit",
}

func checkNftables(tried outcomes) Result {
	r := tried.answer(Result{Name: "nftables", Title: "nftables", Level: Required,
		Cost:   "Services and hostPorts do not work",
		Remedy: Remedy{Admin: "modprobe -a nf_tables nft_chain_nat && printf 'nf_tables\\nnft_chain_nat\\n' > /etc/modules-load.d/berth-nft.conf"},
	}, trialNftables, "tables, nat chains and all expressions of kube-proxy", trialNetNS)
	if r.OK != Yes {
		return r
	}
	if missing, modules := tried.refused(trialNftables, proxyExpressions...); len(missing) > 0 {
		r.OK, r.Found = No, "expressions refused: "+strings.Join(missing, ", ")
		r.Cost = "Services do not work: kube-proxy's rules are refused"
		r.Remedy.Admin = loadModules(modules)
	}
	return r
}

// checkPodShares reports whether the kernel has what the shares of single pods need.
func checkPodShares(tried outcomes) Result {
	r := tried.answer(Result{Name: "pod-shares", Title: "shares of pods", Level: Recommended},
		trialConntrack, "of connections, and of queries for names", trialNetNS)
	if r.OK == Unknown {
		return r
	}
	missing, modules := tried.refused(trialNftables, "connlimit", "limit")
	if r.OK == No {
		missing, modules = append(missing, fmt.Sprintf("list of connections (%s)", r.Found)), append(modules, "nf_conntrack_netlink")
	}
	if len(missing) > 0 {
		r.OK, r.Found = No, "refused: "+strings.Join(missing, ", ")
		r.Cost = "one pod can keep other pods of its node from names or connections"
		r.Remedy.Admin = loadModules(modules)
	}
	return r
}

// proxyExpressions are the expressions of kube-proxy and the portmap plugin.
var proxyExpressions = []string{"ct", "reject", "numgen", "fib", "dnat", "masquerade"}

// refused returns the names of expressions of nftables that the kernel lacks, with its
// errors, and the modules that have them.
func (tried outcomes) refused(trial string, names ...string) (expressions, modules []string) {
	for _, name := range names {
		if o, ok := tried[trial+":"+name]; ok && !o.ok() {
			expressions = append(expressions, fmt.Sprintf("%s (%s)", name, o.Error))
			modules = append(modules, nftModules[name])
		}
	}
	return expressions, modules
}

func loadModules(names []string) string {
	return fmt.Sprintf("modprobe -a %[1]s && printf '%%s\\n' %[1]s > /etc/modules-load.d/berth-nft.conf", strings.Join(names, " "))
}

func checkSeccomp(h *Host, tried outcomes) []Result {
	filter := tried.answer(Result{Name: "seccomp", Title: "seccomp filters", Level: Required,
		Cost:   "containers run without the filter that their pod asks for, and the one-uid mode is impossible",
		Remedy: Remedy{Admin: "use a kernel built with CONFIG_SECCOMP_FILTER"},
	}, trialSeccomp, "installed")
	notify := tried.answer(Result{Name: "seccomp-notify", Title: "seccomp notification", Level: Optional,
		Cost:   "no fast path: pod traffic between nodes stays on the overlay",
		Remedy: Remedy{Admin: "use Linux 5.14 or newer, and no seccomp filter around the job"},
	}, trialNotify, "listener with atomic descriptor passing")
	if o, ok := tried[trialNotifySend]; notify.OK == Yes && ok && !o.ok() {
		notify.OK, notify.Found = Degraded, "listener, but no SECCOMP_ADDFD_FLAG_SEND: "+o.Error
		notify.Cost = "no fast path: it needs to pass descriptors atomically"
		notify.Remedy = Remedy{Admin: "use Linux 5.14 or newer"}
	}
	if scope, ok := h.number("kernel.yama.ptrace_scope"); ok && scope >= 2 && notify.OK == Yes {
		notify.OK, notify.Found = Degraded, fmt.Sprintf("kernel.yama.ptrace_scope is %d", scope)
		notify.Cost = "no fast path: descriptors of a process that died cannot be fetched"
		notify.Remedy = Remedy{Admin: "set kernel.yama.ptrace_scope=1 in /etc/sysctl.d, and restart where it is 3 (which is final until then)"}
	}
	return []Result{filter, notify}
}

// resolvers returns the name servers of resolv.conf.
func (h *Host) resolvers() []netip.Addr {
	var servers []netip.Addr
	for line := range strings.Lines(string(h.read("/etc/resolv.conf"))) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if address, err := netip.ParseAddr(fields[1]); err == nil {
			servers = append(servers, address)
		}
	}
	return servers
}

func checkResolvers(h *Host) Result {
	r := Result{Name: "resolvers", Title: "name servers", Level: Recommended, OK: Yes}
	var names []string
	loopback := false
	for _, server := range h.resolvers() {
		names = append(names, server.String())
		loopback = loopback || server.IsLoopback()
	}
	r.Found = strings.Join(names, " ")
	if loopback {
		r.Found += " (on the host's loopback: berth relays to it)"
	}
	if len(names) == 0 {
		r.OK, r.Found = No, "no nameserver in /etc/resolv.conf"
		r.Cost = "pods resolve only the names of their cluster"
		r.Remedy = Remedy{Admin: "put the site's name server into /etc/resolv.conf of the compute nodes"}
	}
	return r
}

// goodSocketBuffer holds what a fast network delivers while the overlay's
// process waits for its turn.
const goodSocketBuffer = 4 << 20

func checkBuffers(h *Host) Result {
	r := Result{Name: "udp-buffers", Title: "socket buffers", Level: Optional, OK: Yes}
	receive, ok := h.number("net.core.rmem_max")
	send, ok2 := h.number("net.core.wmem_max")
	if !ok || !ok2 {
		r.OK, r.Found = Unknown, "net.core.rmem_max cannot be read here"
		return r
	}
	r.Found = fmt.Sprintf("rmem_max %s, wmem_max %s", Bytes(receive), Bytes(send))
	if min(receive, send) < goodSocketBuffer {
		r.OK, r.Cost = Degraded, "bursts between nodes can lose packets, and TCP in pods slows down"
		r.Remedy = Remedy{Admin: fmt.Sprintf("sysctl -w net.core.rmem_max=%[1]d net.core.wmem_max=%[1]d   # and keep it in /etc/sysctl.d/90-berth.conf", goodSocketBuffer)}
	}
	return r
}
