package fastpath

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Service with session affinity sends a pod's connections to the pod that received the
// last one. The Switch sees all connections of a pod with the fast path, so it keeps their
// affinity, in records that outlive it. kube-proxy does that for other pods.

// affinityKey identifies the connections of one pod to one Service.
type affinityKey struct {
	from netip.Addr
	to   netip.AddrPort
}

const (
	minSticky = 1024
	maxSticky = numRecords / 4
)

// affinity holds the pod that received the last connection of each pod to each Service.
type affinity struct {
	state *state

	mu      sync.Mutex
	records map[affinityKey]*record
	// When there are tidyAt records, the expired ones are removed.
	tidyAt int
}

func newAffinity(s *state) *affinity {
	return &affinity{state: s, records: map[affinityKey]*record{}, tidyAt: minSticky}
}

// adopt takes a record of a predecessor.
func (a *affinity) adopt(r *record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records[affinityKey{r.local.addrPort().Addr(), r.peer.addrPort()}] = r
}

// choose returns the pod for a connection to a Service: the pod of the last connection if
// the Service has session affinity, and otherwise a random one.
func (a *affinity) choose(from netip.Addr, to netip.AddrPort, r Route) netip.AddrPort {
	chosen := r.Targets[rand.IntN(len(r.Targets))]
	if r.Sticky == 0 {
		return chosen
	}
	now := sinceBoot()
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.records[affinityKey{from, to}]
	if known == nil {
		if known = a.rememberLocked(from, now); known == nil {
			return chosen
		}
		known.local, known.peer = packEnd(netip.AddrPortFrom(from, 0)), packEnd(to)
		a.records[affinityKey{from, to}] = known
	}
	if before := known.target.addrPort(); now < time.Duration(known.cookie) && slices.Contains(r.Targets, before) {
		chosen = before
	}
	known.target, known.cookie = packEnd(chosen), uint64(now+r.Sticky)
	return chosen
}

// rememberLocked returns a new record, or nil if there are too many. It removes expired
// records whenever their number has doubled.
func (a *affinity) rememberLocked(from netip.Addr, now time.Duration) *record {
	if len(a.records) >= a.tidyAt {
		maps.DeleteFunc(a.records, func(_ affinityKey, r *record) bool {
			over := now >= time.Duration(r.cookie)
			if over {
				a.state.put(r)
			}
			return over
		})
		a.tidyAt = min(2*len(a.records)+minSticky, maxSticky)
	}
	if len(a.records) >= maxSticky {
		return nil
	}
	return a.state.take(kindSticky, from)
}

// sinceBoot returns the time since boot. Unlike Go's monotonic time, it means the same in a
// successor.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}
