package fastpath

import (
	"maps"
	"net/netip"
	"sync"
	"time"
)

// Short connections in quick succession cost more where the hosts make them than
// on the overlay: two Switches are asked about each, and there is little to carry
// afterwards. A port that proves to have such is left to the overlay for a while,
// and then tried anew.

const (
	// habitPeriod is how long a port is looked at; a connection that ends within it
	// is a short one.
	habitPeriod = time.Second
	// habitFor is for how long a port with short connections is left alone.
	habitFor = 10 * time.Second
	// numSamples are the first connections of a period, of which mostLong may last.
	numSamples, mostLong = 8, 1
	// mostHabits is how many ports are looked at, more or less.
	mostHabits = 1024
)

// habits are those of the ports to which pods connect.
type habits struct {
	mu sync.Mutex
	of map[netip.AddrPort]*habit
}

type habit struct {
	began   time.Time
	made    int
	samples []record
	until   time.Time // it is left to the overlay
}

// short tells whether connections to a port are to be left to the overlay now.
func (h *habits) short(to netip.AddrPort, now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.of[to]
	return known != nil && now.Before(known.until)
}

// note takes a new connection in. It returns those by which the port is to be
// judged, at the end of a period in which there were as many as busy.
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

// leave has a port left to the overlay until then.
func (h *habits) leave(to netip.AddrPort, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if known := h.of[to]; known != nil {
		known.until = until
	}
}

// learn takes in that a connection to a port was switched.
func (s *Switch) learn(to netip.AddrPort, about record) {
	if s.config.Busy == 0 {
		return
	}
	samples := s.habits.note(to, about, s.config.Busy, time.Now())
	if len(samples) == 0 {
		return
	}
	last := 0
	for _, r := range samples {
		if inode, err := s.inode(&r); err != nil || inode != 0 {
			last++
		}
	}
	if last <= mostLong {
		s.habits.leave(to, time.Now().Add(habitFor))
	}
}
