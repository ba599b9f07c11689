package cluster

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
)

// layout holds the sizes of a cluster's block of addresses and of the part that each node has
// for its pods. The lower half of the block is for pods, the third quarter for Services,
// the last quarter for nodes and what belongs to them.
type layout struct {
	// blockBits is the length of the block's prefix, nodeBits that of the part for the
	// pods of one node.
	blockBits, nodeBits int
}

const (
	// maxNodes is the largest number of nodes in a cluster.
	maxNodes = 4096
	// defaultBlockBits is the length of the block's prefix in most clusters. With
	// largestBlockBits there is room for maxNodes nodes, and the shared address space
	// still has four such blocks.
	defaultBlockBits, largestBlockBits = 14, 12
	// A block that the user names has a prefix of leastBits to mostBits bits. A smaller
	// block has no room for the addresses of nodes.
	leastBits, mostBits = 8, 20
	// A user may limit the pods of each node to a number from leastPodsPerNode, which
	// leaves room for a small workload, to mostPodsPerNode.
	leastPodsPerNode, mostPodsPerNode = 5, 250
	// unusableAddresses are the first and last address of a node's range, and the
	// bridge's.
	unusableAddresses = 3
)

// layoutFor returns the layout for a number of nodes. podsPerNode is 0 if the user has
// not chosen it: then a node has 509 addresses for pods, or 125 in a large cluster. block
// is invalid unless the user names one.
func layoutFor(nodes, podsPerNode int, block netip.Prefix) (layout, error) {
	blocks := []int{block.Bits()}
	if !block.IsValid() {
		blocks = []int{defaultBlockBits, defaultBlockBits - 1, largestBlockBits}
	}
	parts := []int{23, 24, 25}
	if podsPerNode > 0 {
		parts = []int{32 - bits.Len(uint(podsPerNode+unusableAddresses-1))}
	}
	for _, blockBits := range blocks {
		for _, nodeBits := range parts {
			if nodes <= (layout{blockBits, nodeBits}).nodes() {
				return layout{blockBits, nodeBits}, nil
			}
		}
	}
	most := layout{blocks[len(blocks)-1], parts[len(parts)-1]}
	return layout{}, fmt.Errorf("choose addresses for %d nodes with %d pods each: a block of %d bits has room for %d such nodes; name a larger block (--address-block PREFIX/%d) or request fewer pods (--pods-per-node)",
		nodes, most.pods(), most.blockBits, most.nodes(), max(leastBits, most.blockBits-4))
}

// nodes returns the number of nodes whose pods have room in the lower half of the block.
func (l layout) nodes() int {
	if l.nodeBits <= l.blockBits {
		return 0
	}
	return min(1<<(l.nodeBits-l.blockBits-1), nodesPerPage*(1<<(30-l.blockBits)/256-1), maxNodes)
}

// pods returns the number of pods that can have addresses on a node.
func (l layout) pods() int { return 1<<(32-l.nodeBits) - unusableAddresses }

// candidates returns the networks to search for a block, in this order: the
// shared address space (RFC 6598) first, because sites use it least, then the
// private ranges (RFC 1918), the less usual ones first.
func candidates(blockBits int) []netip.Prefix {
	var blocks []netip.Prefix
	step := 1 << (16 - blockBits)
	for second := 64; second < 128; second += step {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, byte(second)}), blockBits))
	}
	for second := 256 - step; second >= 0; second -= step {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(second)}), blockBits))
	}
	for second := 32 - step; second >= 16; second -= step {
		blocks = append(blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(second)}), blockBits))
	}
	return blocks
}

func free(block netip.Prefix, used []netip.Prefix) bool {
	return !slices.ContainsFunc(used, func(prefix netip.Prefix) bool { return prefix.Bits() > 0 && prefix.Overlaps(block) })
}

// nodesPerPage is the number of nodes in each 256 addresses. The first 256 addresses of
// the nodes' range are for what belongs to all nodes.
const nodesPerPage = 250

// addresses returns the addresses of the node with an index.
func (l layout) addresses(block netip.Prefix, index int) Addresses {
	first := binary.BigEndian.Uint32(block.Masked().Addr().AsSlice())
	quarter := 1 << (30 - l.blockBits)
	at := func(offset int) netip.Addr {
		return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, first+uint32(offset))))
	}
	nodeAddress := func(index int) netip.Addr {
		return at(3*quarter + 256*(1+index/nodesPerPage) + 1 + index%nodesPerPage)
	}
	return Addresses{
		Family: Family{
			Pods:     netip.PrefixFrom(at(0), l.blockBits+1),
			NodePods: netip.PrefixFrom(at(index<<(32-l.nodeBits)), l.nodeBits),
			Services: netip.PrefixFrom(at(2*quarter), l.blockBits+2),
			Nodes:    netip.PrefixFrom(at(3*quarter), l.blockBits+2),
			Node:     nodeAddress(index),
		},
		APIService: at(2*quarter + 1),
		DNSService: at(2*quarter + 10),
		APIServer:  nodeAddress(0),
		DNS:        at(3*quarter + 10),
		Gateway:    at(3*quarter + 1),
		APIPort:    6443,
	}
}

// place returns the place of the node with an index, in the cluster of a node that has the
// addresses a.
func (a Addresses) place(index int) Member {
	l := layout{blockBits: a.Pods.Bits() - 1, nodeBits: a.NodePods.Bits()}
	at := l.addresses(netip.PrefixFrom(a.Pods.Addr(), l.blockBits), index)
	if a.IPv6 != nil {
		at.IPv6 = ipv6In(netip.PrefixFrom(a.IPv6.Pods.Addr(), ulaBits), index)
	}
	return Member{Address: at.Node, Prefixes: prefixesTo(at)}
}

// balancerAddress returns an address on the loopback of the node's namespace,
// beside the port of the API server, which listens on all addresses.
func balancerAddress() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 6444)
}
