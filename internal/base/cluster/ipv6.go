package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
)

// Values of Network.IPFamily; kind uses the same names.
const (
	// autoFamily is DualStack if every host reaches the outside by IPv6, and
	// IPv4Only otherwise.
	autoFamily = "auto"
	IPv4Only   = "ipv4"
	DualStack  = "dual"
)

// Reach describes the farthest destinations that a host reaches by IPv6.
type Reach string

const (
	// Nowhere means that the host's kernel has no IPv6.
	Nowhere Reach = ""
	// ToNodes means that pods and nodes can have IPv6 addresses, but the host has no
	// route to the outside.
	ToNodes Reach = "nodes"
	// ToOutside means that the host reaches the outside.
	ToOutside Reach = "outside"
)

// errNoIPv6Addresses is the error if no IPv6 range is free on all nodes.
var errNoIPv6Addresses = errors.New("choose IPv6 addresses for pods and Services: the routes of the nodes cover the private range fd00::/8; do without with --ip-family ipv4")

const (
	// ulaBits is the size of a block of unique local addresses (RFC 4193).
	ulaBits = 48
	// ulaTries is the number of blocks to try. A second one is hardly ever
	// needed: sites use a few of the 2^40 blocks, or route all of them.
	ulaTries = 16
)

// chooseIPv6 returns a cluster's IPv6 block and Addresses.WithoutIPv6. The block
// is zero if the cluster has only IPv4.
func chooseIPv6(spec Spec, offers []Offer) (none netip.Prefix, without string, err error) {
	family := spec.Network.IPFamily
	if family == IPv4Only || spec.Kept.IPv4.IsValid() && !spec.Kept.IPv6.IsValid() && family != DualStack {
		return none, "", nil
	}
	var used []netip.Prefix
	for _, offer := range offers {
		switch {
		case offer.IPv6 == Nowhere && family == DualStack:
			return none, "", fmt.Errorf("give pods IPv6 addresses (--ip-family %s): the kernel of node %s has no IPv6, or it is switched off there; an administrator can boot without ipv6.disable=1; --ip-family %s does without",
				DualStack, offer.Host, IPv4Only)
		case offer.RefusedIPv6 != "" && family == DualStack:
			return none, "", fmt.Errorf("give Services IPv6 addresses (--ip-family %s): the kernel of node %s takes no rules for them (%s); an administrator can run: modprobe -a nft_fib_ipv6 nft_reject_ipv6; --ip-family %s does without",
				DualStack, offer.Host, offer.RefusedIPv6, IPv4Only)
		case without != "":
		case offer.IPv6 != ToOutside:
			without = fmt.Sprintf("the host of node %s has no global IPv6 address with a default route", offer.Host)
		case offer.RefusedIPv6 != "":
			without = fmt.Sprintf("the kernel of node %s takes no rules for Services with IPv6 addresses (%s); berth doctor says there what is missing", offer.Host, offer.RefusedIPv6)
		}
		used = append(used, offer.Used...)
	}
	if without != "" && family != DualStack {
		return none, without, nil
	}
	if kept := spec.Kept.IPv6; kept.IsValid() && free(kept, used) {
		return kept, without, nil
	}
	for try := range ulaTries {
		if block := ulaBlock(offers[0].RunID, try); free(block, used) {
			return block, without, nil
		}
	}
	if family == DualStack {
		return none, "", errNoIPv6Addresses
	}
	return none, "the routes of the nodes cover the private range fd00::/8", nil
}

// ulaBlock returns a block of unique local addresses. RFC 4193 requires a random one,
// so that networks do not clash when they are connected later. A hash of the run's name
// is as good, and keeps the plan a function of its input.
func ulaBlock(run string, try int) netip.Prefix {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", run, try))
	bytes := [16]byte{0xfd}
	copy(bytes[1:6], sum[:])
	return netip.PrefixFrom(netip.AddrFrom16(bytes), ulaBits)
}

// ipv6In returns the addresses of the node with an index, in a /48 block. The subnets
// 0 to fff are the nodes' parts of the pod range, 1000 is for Services, 2000 for nodes.
func ipv6In(block netip.Prefix, index int) *Family {
	at := func(subnet, host uint16) netip.Addr {
		bytes := block.Addr().As16()
		bytes[6], bytes[7] = byte(subnet>>8), byte(subnet)
		bytes[14], bytes[15] = byte(host>>8), byte(host)
		return netip.AddrFrom16(bytes)
	}
	return &Family{
		Pods:     netip.PrefixFrom(block.Addr(), 52),
		NodePods: netip.PrefixFrom(at(uint16(index), 0), 64),
		// kube-apiserver accepts no range larger than a /108.
		Services: netip.PrefixFrom(at(0x1000, 0), 112),
		Nodes:    netip.PrefixFrom(at(0x2000, 0), 64),
		Node:     at(0x2000, uint16(index)+1),
	}
}
