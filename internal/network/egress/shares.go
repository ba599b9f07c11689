package egress

import (
	"net/netip"
	"sync"
)

// shareFactor bounds the connections of one pod to a multiple of the connections
// that remain free for all. A single pod gets 3/4 of them, two pods get 3/7 each.
// A pod that comes later always finds some that are free. See Choudhury and Hahne,
// "Dynamic queue length thresholds for shared-memory packet switches" (1998).
const shareFactor = 3

// shares counts the open connections of each pod, and of each client outside
// that has some to published ports.
type shares struct {
	mu    sync.Mutex
	limit int
	open  map[netip.Addr]int
	total int
}

func newShares(limit int) *shares {
	return &shares{limit: limit, open: make(map[netip.Addr]int)}
}

// take reports whether a pod may have a further connection. It calls give when
// that ends.
func (s *shares) take(pod netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[pod] >= shareFactor*(s.limit-s.total) {
		return false
	}
	s.open[pod]++
	s.total++
	return true
}

func (s *shares) give(pod netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total--
	if s.open[pod]--; s.open[pod] == 0 {
		delete(s.open, pod)
	}
}
