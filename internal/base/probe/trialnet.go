package probe

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// tryTUN makes the device that the egress makes; it ends with its file.
func tryTUN() error {
	device, err := linux.OpenTUN("probe-tun")
	if err != nil {
		return err
	}
	return device.Close()
}

// tryLinks makes what the bridge plugin makes for a pod.
func tryLinks() error {
	newLink := func(name, kind string, data ...[]byte) error {
		info := [][]byte{linux.NetlinkAttribute(unix.IFLA_INFO_KIND, []byte(kind))}
		if len(data) > 0 {
			info = append(info, linux.NetlinkAttribute(unix.IFLA_INFO_DATA, data...))
		}
		body := append(make([]byte, unix.SizeofIfInfomsg),
			linux.NetlinkAttribute(unix.IFLA_IFNAME, append([]byte(name), 0))...)
		body = append(body, linux.NetlinkAttribute(unix.IFLA_LINKINFO, info...)...)
		err := linux.NetlinkExchange(unix.NETLINK_ROUTE, []linux.NetlinkRequest{{
			Type: unix.RTM_NEWLINK, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL | unix.NLM_F_ACK, Body: body}})
		if err != nil {
			return fmt.Errorf("make a %s device: %w", kind, err)
		}
		return nil
	}
	if err := newLink("probe-br", "bridge"); err != nil {
		return err
	}
	const vethInfoPeer = 1
	peer := append(make([]byte, unix.SizeofIfInfomsg),
		linux.NetlinkAttribute(unix.IFLA_IFNAME, []byte("probe-v1\x00"))...)
	return newLink("probe-v0", "veth", linux.NetlinkAttribute(vethInfoPeer, peer))
}

// Numbers of nf_tables.h that golang.org/x/sys does not name.
const (
	nftSubsystem   = 10
	nftBatchBegin  = 0x10
	nftBatchEnd    = 0x11
	nftNewTable    = nftSubsystem << 8
	nftNewChain    = nftSubsystem<<8 | 3
	nftNewRule     = nftSubsystem<<8 | 6
	nested         = 1 << 15
	hookPrerouting = 0
	hookForward    = 2
	hookPost       = 4

	connlimitCount = 1

	conntrackSubsystem = 1
	conntrackCPUStats  = 4
)

// nftFamily is an IP family of tables, with what its rules differ in.
type nftFamily struct {
	trial    string
	number   byte
	loopback netip.Addr
	// portUnreachable is the code of the ICMP message.
	portUnreachable byte
}

func nftFamilies() []nftFamily {
	return []nftFamily{
		{trialNftables, unix.NFPROTO_IPV4, netip.AddrFrom4([4]byte{127, 0, 0, 1}), 3},
		{trialNftables6, unix.NFPROTO_IPV6, netip.IPv6Loopback(), 4},
	}
}

// tryNftables makes a table with chains as kube-proxy and the portmap plugin do,
// then one rule for each kind of expression that they and the shares of pods use. Kernels ship
// expressions as separate modules, and a site may have omitted some.
func tryNftables(family nftFamily, report func(string, error)) {
	const table = "probe"
	attribute := linux.NetlinkAttribute
	text := func(kind uint16, s string) []byte { return attribute(kind, append([]byte(s), 0)) }
	number := func(kind uint16, n uint32) []byte { return attribute(kind, binary.BigEndian.AppendUint32(nil, n)) }
	number64 := func(kind uint16, n uint64) []byte { return attribute(kind, binary.BigEndian.AppendUint64(nil, n)) }
	message := func(kind uint16, attributes ...[]byte) linux.NetlinkRequest {
		body := []byte{family.number, 0, 0, 0}
		for _, a := range attributes {
			body = append(body, a...)
		}
		return linux.NetlinkRequest{Type: kind, Flags: unix.NLM_F_CREATE | unix.NLM_F_ACK, Body: body}
	}
	commit := func(messages ...linux.NetlinkRequest) error {
		mark := []byte{0, 0, 0, nftSubsystem}
		batch := []linux.NetlinkRequest{{Type: nftBatchBegin, Body: mark}}
		batch = append(append(batch, messages...), linux.NetlinkRequest{Type: nftBatchEnd, Body: mark})
		return linux.NetlinkExchange(unix.NETLINK_NETFILTER, batch)
	}
	chain := func(name, kind string, hook uint32) linux.NetlinkRequest {
		return message(nftNewChain, text(unix.NFTA_CHAIN_TABLE, table), text(unix.NFTA_CHAIN_NAME, name),
			attribute(unix.NFTA_CHAIN_HOOK|nested, number(unix.NFTA_HOOK_HOOKNUM, hook), number(unix.NFTA_HOOK_PRIORITY, 0)),
			text(unix.NFTA_CHAIN_TYPE, kind))
	}
	err := commit(
		message(nftNewTable, text(unix.NFTA_TABLE_NAME, table)),
		chain("forward", "filter", hookForward),
		chain("before", "nat", hookPrerouting),
		chain("after", "nat", hookPost))
	report(family.trial, err)
	if err != nil {
		return
	}
	expression := func(name string, data ...[]byte) []byte {
		return attribute(unix.NFTA_LIST_ELEM|nested, text(unix.NFTA_EXPR_NAME, name), attribute(unix.NFTA_EXPR_DATA|nested, data...))
	}
	const register = unix.NFT_REG_1
	address := expression("immediate", number(unix.NFTA_IMMEDIATE_DREG, register),
		attribute(unix.NFTA_IMMEDIATE_DATA|nested, attribute(unix.NFTA_DATA_VALUE, family.loopback.AsSlice())))
	const fibDestinationType, fibDestination = 3, 1 << 1
	for _, rule := range []struct {
		name, chain string
		expressions [][]byte
	}{
		{"ct", "forward", [][]byte{expression("ct", number(unix.NFTA_CT_DREG, register), number(unix.NFTA_CT_KEY, unix.NFT_CT_STATE))}},
		{"reject", "forward", [][]byte{expression("reject", number(unix.NFTA_REJECT_TYPE, unix.NFT_REJECT_ICMP_UNREACH), attribute(unix.NFTA_REJECT_ICMP_CODE, []byte{family.portUnreachable}))}},
		{"numgen", "before", [][]byte{expression("numgen", number(unix.NFTA_NG_DREG, register), number(unix.NFTA_NG_MODULUS, 2), number(unix.NFTA_NG_TYPE, unix.NFT_NG_RANDOM))}},
		{"fib", "before", [][]byte{expression("fib", number(unix.NFTA_FIB_DREG, register), number(unix.NFTA_FIB_RESULT, fibDestinationType), number(unix.NFTA_FIB_FLAGS, fibDestination))}},
		{"dnat", "before", [][]byte{address, expression("nat", number(unix.NFTA_NAT_TYPE, unix.NFT_NAT_DNAT), number(unix.NFTA_NAT_FAMILY, uint32(family.number)), number(unix.NFTA_NAT_REG_ADDR_MIN, register))}},
		{"masquerade", "after", [][]byte{expression("masq")}},
		{"connlimit", "forward", [][]byte{expression("connlimit", number(connlimitCount, 1))}},
		{"limit", "forward", [][]byte{expression("limit", number64(unix.NFTA_LIMIT_RATE, 1), number64(unix.NFTA_LIMIT_UNIT, 1))}},
	} {
		report(family.trial+":"+rule.name, commit(message(nftNewRule, text(unix.NFTA_RULE_TABLE, table),
			text(unix.NFTA_RULE_CHAIN, rule.chain), attribute(unix.NFTA_RULE_EXPRESSIONS|nested, rule.expressions...))))
	}
}

// tryConntrack asks for what needs no connection and no dump: the kernel answers with an
// error only if it lacks nf_conntrack_netlink.
func tryConntrack() error {
	return linux.NetlinkExchange(unix.NETLINK_NETFILTER, []linux.NetlinkRequest{{
		Type: conntrackSubsystem<<8 | conntrackCPUStats, Flags: unix.NLM_F_ACK, Body: []byte{unix.AF_INET, 0, 0, 0}}})
}
