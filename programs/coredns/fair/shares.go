package fair

import (
	"net/netip"
	"sync"
)

// shareFactor bounds the queries of one client to a multiple of the places that
// remain free for all, as in berth's internal/network/egress: one client gets 3/4
// of the places, two get 3/7 each.
const shareFactor = 3

// shares counts the queries of each client that wait for another server.
type shares struct {
	limit int

	mu    sync.Mutex
	open  map[netip.Addr]int
	total int
}

func newShares(limit int) *shares {
	return &shares{limit: limit, open: make(map[netip.Addr]int)}
}

// take reports whether the client may have a further query. The caller calls give
// when that ends.
func (s *shares) take(client netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[client] >= shareFactor*(s.limit-s.total) {
		return false
	}
	s.open[client]++
	s.total++
	return true
}

func (s *shares) give(client netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.open[client]--; s.open[client] == 0 {
		delete(s.open, client)
	}
}
