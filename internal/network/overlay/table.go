package overlay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// table holds the nodes for lookups by the queues. It is immutable.
type table struct {
	self     int
	peers    []*peer // by index of the node; nil for the node itself
	bySource map[netip.AddrPort]*peer
	// levels4 and levels6 hold the prefixes by length, the longest first.
	levels4 []level4
	levels6 []level6
}

type level4 struct {
	mask uint32
	to   map[uint32]int
}

type level6 struct {
	bits int
	to   map[netip.Addr]int
}

// peer is another node.
type peer struct {
	index     int
	name      string
	endpoints []netip.AddrPort
	stream    netip.AddrPort
	// asking and awaited authenticate control messages to the peer and from it.
	asking, awaited []byte
	paths           []*path // by queue of this node
}

// newTable returns a table of the nodes. It returns an error if a prefix or endpoint is
// invalid, or belongs to two nodes. ipv6 selects the family of this node's sockets.
func newTable(key []byte, self int, nodes []Node, ipv6 bool, queues int) (*table, error) {
	t := &table{self: self, peers: make([]*peer, len(nodes)), bySource: map[netip.AddrPort]*peer{}}
	owner := map[netip.Prefix]int{}
	for i, node := range nodes {
		for _, prefix := range node.Prefixes {
			if !prefix.IsValid() || prefix.Masked() != prefix {
				return nil, fmt.Errorf("node %s: %s is not a prefix", node.Name, prefix)
			}
			if other, taken := owner[prefix]; taken {
				return nil, fmt.Errorf("node %s: prefix %s belongs to %s", node.Name, prefix, nodes[other].Name)
			}
			owner[prefix] = i
		}
		if i == self {
			continue
		}
		p, err := newPeer(key, self, i, node, ipv6, queues)
		if err != nil {
			return nil, err
		}
		t.peers[i] = p
		if err := t.addSources(p); err != nil {
			return nil, err
		}
	}
	t.arrange(owner)
	return t, nil
}

func newPeer(key []byte, self, index int, node Node, ipv6 bool, queues int) (p *peer, err error) {
	p = &peer{index: index, name: node.Name, endpoints: slices.Clone(node.Endpoints), stream: node.Stream}
	if p.asking, err = controlKey(key, self, index); err != nil {
		return nil, err
	}
	if p.awaited, err = controlKey(key, index, self); err != nil {
		return nil, err
	}
	for _, endpoint := range node.Endpoints {
		if !endpoint.IsValid() || endpoint.Port() == 0 {
			return nil, fmt.Errorf("node %s: endpoint %s is not valid", node.Name, endpoint)
		}
		if !ipv6 && !endpoint.Addr().Unmap().Is4() {
			return nil, fmt.Errorf("node %s: endpoint %s cannot be reached from an IPv4 socket", node.Name, endpoint)
		}
	}
	if len(node.Endpoints) == 0 && !node.Stream.IsValid() {
		return p, nil
	}
	for queue := range queues {
		p.paths = append(p.paths, newPath(p, queue, ipv6))
	}
	return p, nil
}

// isAt reports whether the node has a socket at the address of the hosts'
// network.
func (p *peer) isAt(address netip.Addr) bool {
	address = address.Unmap()
	return p.stream.Addr().Unmap() == address ||
		slices.ContainsFunc(p.endpoints, func(e netip.AddrPort) bool { return e.Addr().Unmap() == address })
}

// nobody is returned by lookups that match no node.
const nobody = -1

// arrange fills the levels from the owners of the prefixes.
func (t *table) arrange(owner map[netip.Prefix]int) {
	for prefix, node := range owner {
		if prefix.Addr().Is4() {
			mask := ^uint32(0) << (32 - prefix.Bits())
			i := slices.IndexFunc(t.levels4, func(l level4) bool { return l.mask == mask })
			if i < 0 {
				i = len(t.levels4)
				t.levels4 = append(t.levels4, level4{mask: mask, to: map[uint32]int{}})
			}
			address := prefix.Addr().As4()
			t.levels4[i].to[binary.BigEndian.Uint32(address[:])] = node
			continue
		}
		i := slices.IndexFunc(t.levels6, func(l level6) bool { return l.bits == prefix.Bits() })
		if i < 0 {
			i = len(t.levels6)
			t.levels6 = append(t.levels6, level6{bits: prefix.Bits(), to: map[netip.Addr]int{}})
		}
		t.levels6[i].to[prefix.Addr()] = node
	}
	slices.SortFunc(t.levels4, func(a, b level4) int { return int(int64(b.mask) - int64(a.mask)) })
	slices.SortFunc(t.levels6, func(a, b level6) int { return b.bits - a.bits })
}

// find4 returns the index of the node that has the IPv4 address, or nobody.
func (t *table) find4(address []byte) int {
	value := binary.BigEndian.Uint32(address)
	for i := range t.levels4 {
		if node, ok := t.levels4[i].to[value&t.levels4[i].mask]; ok {
			return node
		}
	}
	return nobody
}

func (t *table) find6(address []byte) int {
	value := netip.AddrFrom16([16]byte(address))
	for i := range t.levels6 {
		prefix, err := value.Prefix(t.levels6[i].bits)
		if err != nil {
			return nobody
		}
		if node, ok := t.levels6[i].to[prefix.Addr()]; ok {
			return node
		}
	}
	return nobody
}

// route returns the peer to send a packet to. It returns nil if the destination belongs
// to no node or to this one.
func (t *table) route(packet []byte) *peer {
	node := nobody
	switch {
	case len(packet) >= minIPv4Header && packet[0]>>4 == 4:
		node = t.find4(packet[16:20])
	case len(packet) >= ipv6Header && packet[0]>>4 == 6:
		node = t.find6(packet[24:40])
	}
	if node == nobody || node == t.self {
		return nil
	}
	return t.peers[node]
}

// isMulticast reports whether a packet's destination is a multicast or broadcast
// address.
func isMulticast(packet []byte) bool {
	switch {
	case len(packet) >= minIPv4Header && packet[0]>>4 == 4:
		return packet[16] >= 224
	case len(packet) >= ipv6Header && packet[0]>>4 == 6:
		return packet[24] == 0xff
	}
	return false
}

// check returns nil if a packet of the peer may be delivered. Otherwise it returns
// errMalformed, errSpoofed or errStray. packet holds at least the IP header.
func (t *table) check(from *peer, packet []byte) error {
	var source, destination int
	switch {
	case len(packet) >= minIPv4Header && packet[0]>>4 == 4:
		source, destination = t.find4(packet[12:16]), t.find4(packet[16:20])
	case len(packet) >= ipv6Header && packet[0]>>4 == 6:
		source, destination = t.find6(packet[8:24]), t.find6(packet[24:40])
	default:
		return errMalformed
	}
	switch {
	case source != from.index:
		return errSpoofed
	case destination != t.self:
		return errStray
	}
	return nil
}

// rawSockaddr converts an address for sockets of the family.
func rawSockaddr(endpoint netip.AddrPort, ipv6 bool) unix.RawSockaddrInet6 {
	address := endpoint.Addr().Unmap()
	raw := unix.RawSockaddrInet6{Port: networkOrder(endpoint.Port())}
	if ipv6 {
		raw.Family, raw.Addr = unix.AF_INET6, address.As16()
		return raw
	}
	// sockaddr_in has its address at the offset of sockaddr_in6's flow label.
	raw.Family = unix.AF_INET
	four := address.As4()
	raw.Flowinfo = binary.NativeEndian.Uint32(four[:])
	return raw
}

// sourceOf converts an address that the kernel has filled in.
func sourceOf(raw *unix.RawSockaddrInet6) netip.AddrPort {
	if raw.Family == unix.AF_INET {
		var four [4]byte
		binary.NativeEndian.PutUint32(four[:], raw.Flowinfo)
		return netip.AddrPortFrom(netip.AddrFrom4(four), networkOrder(raw.Port))
	}
	return netip.AddrPortFrom(netip.AddrFrom16(raw.Addr).Unmap(), networkOrder(raw.Port))
}

func networkOrder(value uint16) uint16 {
	var bytes [2]byte
	binary.BigEndian.PutUint16(bytes[:], value)
	return binary.NativeEndian.Uint16(bytes[:])
}
