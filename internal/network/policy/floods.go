package policy

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Floods drops most queries of a flood. The kernel needs the expression limit
// (CONFIG_NFT_LIMIT).
func (s Shares) Floods() string {
	var script sharesScript
	script.chain("floods", "input")
	for _, f := range versions {
		for _, set := range []string{"queries", "floods", "slow"} {
			script.line("add set inet %s %s-%s { type %s; flags dynamic,timeout; timeout %ds; size 65535; }", sharesTable, set, f.name, f.key, floodSeconds)
		}
		query := fmt.Sprintf("add rule inet %s floods iifname { %s } udp dport 53", sharesTable, s.links())
		script.line("%s update @queries-%s { %[2]s saddr limit rate over %d/second burst %d packets } update @floods-%[2]s { %[2]s saddr } drop",
			query, f.name, s.Queries, max(1, s.Queries/10))
		script.line("%s %s saddr @floods-%[2]s update @slow-%[2]s { %[2]s saddr limit rate over %d/second } drop", query, f.name, max(1, s.Queries/20))
	}
	return script.String()
}

// FloodingPods returns the pods that count as floods in this network namespace. The script
// of Floods must be loaded.
func FloodingPods() ([]netip.Addr, error) { return podsIn("floods") }

// RejectedPods returns the pods that were refused a TCP connection to the name server in the
// last floodSeconds. The script of Streams must be loaded.
func RejectedPods() ([]netip.Addr, error) { return podsIn("rejected") }

// podsIn returns the pods in a set of the shares, for both versions of IP.
func podsIn(set string) (pods []netip.Addr, err error) {
	for _, f := range versions {
		if pods, err = appendElements(pods, set+"-"+f.name); err != nil {
			return nil, fmt.Errorf("list the pods in the set %s-%s: %w", set, f.name, err)
		}
	}
	return pods, nil
}

// appendElements appends the addresses in a set of the shares.
func appendElements(addresses []netip.Addr, set string) ([]netip.Addr, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_INET, Version: nl.NFNETLINK_V0})
	request.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(sharesTable)))
	request.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
	err := request.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(message []byte) bool {
		if len(message) < nl.SizeofNfgenmsg {
			return true
		}
		elements := attribute(message[nl.SizeofNfgenmsg:], unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for element := range attributes(elements) {
			value := attribute(attribute(element, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
			if address, ok := netip.AddrFromSlice(value); ok {
				addresses = append(addresses, address)
			}
		}
		return true
	})
	return addresses, err
}
