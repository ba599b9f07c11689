package fastpath

import (
	"maps"
	"net/netip"
	"sync"
	"time"
)

// Many short connections cost more between the hosts than on the overlay: two Switches
// handle each of them, and they carry little. A port with such connections is left to
// the overlay for a while, and then tried again.

const (
	// habitPeriod is the time to observe a port. A shorter connection counts as short.
	habitPeriod = time.Second
	// habitFor is the time that a port with short connections stays on the overlay.
	habitFor = 10 * time.Second
	// numSamples is the number of connections examined in a period. A port has short
	// connections if at most mostLong of them last.
	numSamples, mostLong = 8, 1
	// mostHabits limits the number of observed ports.
	mostHabits = 1024
)

// habits records the connections to each port.
type habits struct {
	mu sync.Mutex
	of map[netip.AddrPort]*habit
}

// habit is the observation of one port.
type habit struct {
	began   time.Time // the start of the period
	made    int       // connections in the period
	samples []record  // the first of these connections
	until   time.Time // the time until which the port is left to the overlay
}

// short reports whether connections to a port are left to the overlay now.
func (h *habits) short(to netip.AddrPort, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.of[to]
	return known != nil && now.Before(known.until)
}

// note records a new connection. After a period with at least busy connections it
// returns samples for a decision about the port.
func (h *habits) note(to netip.AddrPort, about record, busy int, now time.Time) (samples []record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.of[to]
	if known == nil {
		if len(h.of) >= mostHabits {
			maps.DeleteFunc(h.of, func(_ netip.AddrPort, old *habit) bool {
				return now.After(old.until) && now.Sub(old.began) > 2*habitPeriod
			})
		}
		if len(h.of) >= mostHabits {
			return nil
		}
		known = &habit{began: now}
		h.of[to] = known
	}
	if since := now.Sub(known.began); since >= habitPeriod {
		if known.made >= busy && since < 2*habitPeriod {
			samples = known.samples
		}
		known.began, known.made, known.samples = now, 0, nil
	}
	known.made++
	if len(known.samples) < numSamples {
		known.samples = append(known.samples, about)
	}
	return samples
}

// leave makes a port stay on the overlay until a time.
func (h *habits) leave(to netip.AddrPort, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.of[to]; known != nil {
		known.until = until
	}
}
