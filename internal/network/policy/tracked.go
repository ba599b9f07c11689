package policy

import (
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Shares bounds what one pod gets of what the pods of a node share: the connections that
// its kernel remembers (conntrack), the TCP connections to its name server, and the time
// and buffer of the name server for queries by UDP. While conntrack is full, the kernel
// drops the packets of all new connections, and its entry of an answered TCP connection
// lasts up to five days.
type Shares struct {
	// Links are the interfaces that packets of pods come from.
	Links []string
	// Names bounds the TCP connections of a pod to the name server; one too many is reset.
	Names int
	// Queries is the number of queries by UDP to the name server in a second that makes a
	// pod a flood; it is more than a pod gets answers for. A flood has a twentieth of that.
	// The rest is dropped before the name server has to read it.
	Queries int
	// Full holds the pods that may have no further connection for now; see OverShare. Their
	// first packets are dropped, and for TCP their kernels send them again.
	Full []netip.Addr
}

// sharesTable is separate from the rules for policies, which are replaced whenever a
// policy changes: the counts belong to its sets.
const sharesTable = "berth-shares"

// floodSeconds bounds how long a pod counts as a flood after its last query above the bound.
const floodSeconds = 5

// Each of the three methods below returns a script for nft(8), which may be loaded again
// while loaded, and keeps the counts. They are separate because a kernel may lack what one
// of them needs.

// Connections holds back the pods in Full. Connections in general are not counted by the
// expression connlimit: with 24,000 open ones of a pod, a new one takes 0.15 ms instead of
// 0.01 ms, because the kernel looks each of them up.
func (s Shares) Connections() string {
	var script sharesScript
	for _, hook := range []string{"input", "forward"} {
		script.chain(hook, hook)
	}
	for _, f := range versions {
		script.line("add set inet %s full-%s { type %s; }", sharesTable, f.name, f.key)
		script.line("flush set inet %s full-%s", sharesTable, f.name)
		for _, pod := range s.Full {
			if pod.Is4() == f.ipv4 {
				script.line("add element inet %s full-%s { %s }", sharesTable, f.name, pod)
			}
		}
		for _, hook := range []string{"input", "forward"} {
			script.line("add rule inet %s %s iifname { %s } ct state new %s saddr @full-%[4]s drop", sharesTable, hook, s.links(), f.name)
		}
	}
	return script.String()
}

// Streams bounds the TCP connections to the name server. The kernel needs the expression
// connlimit (CONFIG_NFT_CONNLIMIT).
func (s Shares) Streams() string {
	var script sharesScript
	script.chain("names", "input")
	for _, f := range versions {
		script.line("add set inet %s names-%s { type %s; flags dynamic; size 65535; }", sharesTable, f.name, f.key)
		script.line("add set inet %s rejected-%s { type %s; flags dynamic,timeout; timeout %ds; size 65535; }", sharesTable, f.name, f.key, floodSeconds)
		script.line("add rule inet %s names iifname { %s } tcp dport 53 ct state new add @names-%s { %[3]s saddr ct count over %d } update @rejected-%[3]s { %[3]s saddr } reject with tcp reset",
			sharesTable, s.links(), f.name, s.Names)
	}
	return script.String()
}

func (s Shares) links() string { return strings.Join(s.Links, ", ") }

type sharesScript struct{ strings.Builder }

func (s *sharesScript) line(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// chain begins an empty chain after the policies: a packet that they drop opens no
// connection.
func (s *sharesScript) chain(name, hook string) {
	s.line("add table inet %s", sharesTable)
	s.line("add chain inet %s %s { type filter hook %s priority 5; policy accept; }", sharesTable, name, hook)
	s.line("flush chain inet %s %s", sharesTable, name)
}

// OverShare returns the pods that have their share of a table for limit connections, in
// order. others is the number of connections that belong to no pod. As in package share,
// a pod may have three times what is free.
func OverShare(ofPod map[netip.Addr]int, others, limit int) []netip.Addr {
	free := limit - others
	for _, count := range ofPod {
		free -= count
	}
	var over []netip.Addr
	for pod, count := range ofPod {
		if count >= 3*free {
			over = append(over, pod)
		}
	}
	slices.SortFunc(over, netip.Addr.Compare)
	return over
}

// CountConnections returns the number of connections that the kernel remembers in this
// network namespace, by the address that opened them. It reads the whole table. The kernel
// needs nf_conntrack_netlink.
func CountConnections() (map[netip.Addr]int, error) {
	counts := map[netip.Addr]int{}
	request := nl.NewNetlinkRequest(netlink.ConntrackTable<<8|nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	err := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(entry []byte) bool {
		if source, ok := opener(entry); ok {
			counts[source]++
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("list the connections in conntrack: %w", err)
	}
	return counts, nil
}

// opener returns the source of an entry's first packet. Only few of the attributes are
// read, because an entry has hundreds of bytes, and there may be 262,144.
func opener(entry []byte) (netip.Addr, bool) {
	if len(entry) < nl.SizeofNfgenmsg {
		return netip.Addr{}, false
	}
	tuple := attribute(entry[nl.SizeofNfgenmsg:], nl.CTA_TUPLE_ORIG)
	addresses := attribute(tuple, nl.CTA_TUPLE_IP)
	source := attribute(addresses, nl.CTA_IP_V4_SRC)
	if source == nil {
		source = attribute(addresses, nl.CTA_IP_V6_SRC)
	}
	return netip.AddrFromSlice(source)
}

// attribute returns the value of the first netlink attribute of a kind, or nil.
func attribute(list []byte, kind uint16) []byte {
	for value, of := range attributes(list) {
		if of == kind {
			return value
		}
	}
	return nil
}

// attributes returns the values of netlink attributes, with their kinds.
func attributes(list []byte) iter.Seq2[[]byte, uint16] {
	return func(yield func([]byte, uint16) bool) {
		for len(list) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(list))
			if length < unix.SizeofNlAttr || length > len(list) {
				return
			}
			if !yield(list[unix.SizeofNlAttr:length], binary.NativeEndian.Uint16(list[2:])&nl.NLA_TYPE_MASK) {
				return
			}
			list = list[min((length+3)&^3, len(list)):]
		}
	}
}
