package overlay

import (
	"crypto/rand"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// path leads from one queue of this node to a peer. The prober determines how
// packets get through. The queue's goroutine only reads sending.
type path struct {
	peer     *peer
	queue    int
	endpoint netip.AddrPort // the zero value if the peer accepts no datagrams
	sockaddr unix.RawSockaddrInet6
	// full is the size of the largest datagram that this host's interface and
	// routes should carry, in bytes.
	full    int
	sending atomic.Pointer[sending]
	probing
}

// sending selects the current transport: datagrams of at most limit bytes, or
// the stream if it is not nil.
type sending struct {
	*session
	limit  int
	stream *stream
}

// minDatagram is the smallest size of datagram that makes UDP usable, in bytes.
// It fits into IPv6's minimum MTU of 1280.
const minDatagram = 1200

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

// largestDatagram returns the largest UDP payload, in bytes, that fits the MTU of
// the host's interface and routes.
func largestDatagram(host netip.Addr) int {
	outer, err := pathMTU(host)
	if err != nil {
		outer = 1500 // no route yet; assume the usual MTU
	}
	if host.Unmap().Is4() {
		return max(minDatagram, min(outer-ipv4UDPOverhead, maxUDPPayload))
	}
	return max(minDatagram, min(outer-ipv6UDPOverhead, maxUDPPayload))
}
