package cluster

import (
	"net/netip"
	"slices"
)

// blockBits is the size of the block of addresses that a cluster takes: half
// of it for pods, a quarter for Services, the rest for nodes.
const blockBits = 14

// candidates returns the networks to search for a block, in this order: the
// shared address space (RFC 6598) first, because sites use it least, then the
// private ranges (RFC 1918), the less usual ones first.
func candidates() []netip.Prefix {
	var blocks []netip.Prefix
	for second := 64; second < 128; second += 4 {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(second)}), blockBits))
	}
	for second := 252; second >= 0; second -= 4 {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second)}), blockBits))
	}
	for second := 28; second >= 16; second -= 4 {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(second)}), blockBits))
	}
	return blocks
}

// nodeBits is the size of one node's part of the pod range: 510 pods.
const nodeBits = 23

func free(block netip.Prefix, used []netip.Prefix) bool {
	return !slices.ContainsFunc(used, func(prefix netip.Prefix) bool { return prefix.Bits() > 0 && prefix.Overlaps(block) })
}

// addressesIn lays a block out: the lower half is for pods, the third quarter
// for Services, the last quarter for nodes and what belongs to them.
func addressesIn(block netip.Prefix, index int) Addresses {
	base := block.Masked().Addr().As4()
	at := func(second, third, fourth int) netip.Addr {
		return netip.AddrFrom4([4]byte{base[0], base[1] + byte(second), byte(third), byte(fourth)})
	}
	nodes := at(3, 0, 0)
	nodeAddress := func(index int) netip.Addr { return at(3, 1+index/250, 1+index%250) }
	offset := index << (32 - nodeBits)
	return Addresses{
		Family: Family{
			Pods:     netip.PrefixFrom(at(0, 0, 0), blockBits+1),
			NodePods: netip.PrefixFrom(at(offset>>16, offset>>8&0xff, offset&0xff), nodeBits),
			Services: netip.PrefixFrom(at(2, 0, 0), 16),
			Nodes:    netip.PrefixFrom(nodes, 16),
			Node:     nodeAddress(index),
		},
		APIService: at(2, 0, 1),
		DNSService: at(2, 0, 10),
		APIServer:  nodeAddress(0),
		DNS:        at(3, 0, 10),
		Gateway:    at(3, 0, 1),
		APIPort:    6443,
	}
}

// balancerAddress returns an address on the loopback of the node's namespace,
// beside the port of the API server, which listens on all addresses.
func balancerAddress() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 6444)
}
