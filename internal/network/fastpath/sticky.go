package fastpath

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// A Service with session affinity sends a pod's connections to the pod that received the
// last one. The Switch sees all connections of a pod with the fast path, so it keeps their
// affinity, in records that outlive it. kube-proxy does that for other pods.

// stick identifies connections of one pod to one Service.
type stick struct {
	from netip.Addr
	to   netip.AddrPort
}

const (
	minSticks = 1024
	maxSticks = numRecords / 4
)

// choose returns one of a Service's pods.
func (s *Switch) choose(from netip.Addr, to netip.AddrPort, r Route) netip.AddrPort {
	chosen := r.Targets[rand.IntN(len(r.Targets))]
	if r.Sticky == 0 {
		return chosen
	}
	now := sinceBoot()
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.sticks[stick{from, to}]
	if known == nil {
		if known = s.rememberLocked(now); known == nil {
			return chosen
		}
		known.local, known.peer = packEnd(netip.AddrPortFrom(from, 0)), packEnd(to)
		s.sticks[stick{from, to}] = known
	}
	if before := known.target.addrPort(); now < time.Duration(known.cookie) && slices.Contains(r.Targets, before) {
		chosen = before
	}
	known.target, known.cookie = packEnd(chosen), uint64(now+r.Sticky)
	return chosen
}

// rememberLocked returns a new record, or nil if there are too many. It removes expired
// records whenever their number has doubled.
func (s *Switch) rememberLocked(now time.Duration) *record {
	if len(s.sticks) >= s.sticksAt {
		maps.DeleteFunc(s.sticks, func(_ stick, r *record) bool {
			over := now >= time.Duration(r.cookie)
			if over {
				s.state.put(r)
			}
			return over
		})
		s.sticksAt = min(2*len(s.sticks)+minSticks, maxSticks)
	}
	if len(s.sticks) >= maxSticks {
		return nil
	}
	return s.state.take(kindSticky)
}

// sinceBoot returns the time since boot, which a successor can compare.
func sinceBoot() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t)
	return time.Duration(t.Nano())
}
