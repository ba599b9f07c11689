package overlay

import (
	"crypto/rand"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// path is the way from one queue of this node to a peer. The prober finds out
// what gets through; the queue's goroutine only looks at sending.
type path struct {
	peer     *peer
	queue    int
	endpoint netip.AddrPort // the zero value where the peer takes no datagrams
	sockaddr unix.RawSockaddrInet6
	// full is the largest datagram that this host's interface and routes
	// promise to carry.
	full    int
	sending atomic.Pointer[sending]
	probing
}

// sending is how packets go at this moment: in datagrams of at most limit
// bytes, or in a stream where there is one.
type sending struct {
	*session
	limit  int
	stream *stream
}

// leastLimit is the size of datagram that must get through, or UDP does not: it
// leaves room for IPv6, which has no smaller MTU than 1280.
const leastLimit = 1200

func newPath(to *peer, queue int, ipv6 bool) *path {
	p := &path{peer: to, queue: queue}
	p.generation = uint64(time.Now().UnixNano())
	rand.Read(p.nonce[:])
	if len(to.endpoints) == 0 {
		return p
	}
	p.endpoint = to.endpoints[queue%len(to.endpoints)]
	p.sockaddr = rawSockaddr(p.endpoint, ipv6)
	p.full = largestDatagram(p.endpoint.Addr())
	return p
}

// largestDatagram is the size of UDP payload for which the host's interface
// and routes have room.
func largestDatagram(host netip.Addr) int {
	outer, err := pathMTU(host)
	if err != nil {
		outer = 1500 // There is no way now; the usual one may come.
	}
	if host.Unmap().Is4() {
		return max(leastLimit, min(outer-ipv4UDPOverhead, maxUDPPayload))
	}
	return max(leastLimit, min(outer-ipv6UDPOverhead, maxUDPPayload))
}

// Path is a way to another node, for people to look at.
type Path struct {
	Node  string
	Queue int
	// Carrier is "udp" or "tcp", or empty where nothing gets through.
	Carrier string
	// Datagram is the largest that gets through, in bytes of UDP payload.
	Datagram int
}

// Paths tells how packets go to the other nodes at this moment.
func (o *Overlay) Paths() []Path {
	var all []Path
	for _, to := range o.tables.Load().peers {
		if to == nil {
			continue
		}
		for _, p := range to.paths {
			one := Path{Node: to.name, Queue: p.queue}
			switch by := p.sending.Load(); {
			case by == nil:
			case by.stream != nil:
				one.Carrier = "tcp"
			default:
				one.Carrier, one.Datagram = "udp", by.limit
			}
			all = append(all, one)
		}
	}
	return all
}
