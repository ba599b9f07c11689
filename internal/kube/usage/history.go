package usage

import (
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// fresh is the maximum age of an answer that is reused.
	fresh = time.Second
	// window is the time over which CPU usage is averaged, if there are samples old
	// enough. Autoscalers need an average over some seconds.
	window = 10 * time.Second
	// stale is the age after which a sample is dropped, because an average over minutes does
	// not describe the present usage. It is longer than the 15 seconds between two requests
	// of an autoscaler.
	stale = time.Minute
	// shortest is the time between the two samples of a first answer. Usage is measured over
	// at least half of it, because the kernel counts CPU time in hundredths of a second.
	shortest = time.Second
)

// history holds the recent samples of one node's kubelet.
type history struct {
	ask func(context.Context) (*sample, error)
	now func() time.Time
	// pause returns after a time, or when the context ends.
	pause func(context.Context, time.Duration)

	mu      sync.Mutex // held during a request: other callers want the same answer
	samples []*sample  // oldest first
}

// pair returns the newest sample, and an older one to compare it with. It takes samples
// unless the newest one is fresh, and returns the error of ask.
func (h *history) pair(ctx context.Context) (base, newest *sample, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	h.samples = slices.DeleteFunc(h.samples, func(s *sample) bool { return now.Sub(s.taken) > stale })
	if n := len(h.samples); n > 1 && now.Sub(h.samples[n-1].taken) < fresh {
		return baseOf(h.samples), h.samples[n-1], nil
	}
	if len(h.samples) == 0 {
		if err := h.take(ctx); err != nil {
			return nil, nil, err
		}
	}
	h.pause(ctx, shortest-h.now().Sub(h.samples[len(h.samples)-1].taken))
	if err := h.take(ctx); err != nil {
		return nil, nil, err
	}
	return baseOf(h.samples), h.samples[len(h.samples)-1], nil
}

func (h *history) take(ctx context.Context) error {
	s, err := h.ask(ctx)
	if err != nil {
		return err
	}
	h.samples = append(h.samples, s)
	return nil
}

// baseOf returns the newest sample that is older than the last one by the window,
// or else the oldest.
func baseOf(samples []*sample) *sample {
	base := samples[0]
	newest := samples[len(samples)-1]
	for _, s := range samples[:len(samples)-1] {
		if newest.taken.Sub(s.taken) >= window {
			base = s
		}
	}
	return base
}

// used is the current usage of a container or a node.
type used struct {
	at     time.Time
	window time.Duration
	cores  float64
	memory uint64
}

// between returns the usage between two points. known reports whether there is an earlier
// point. If there is none, or if it belongs to an earlier run of the container, between
// averages over the time since the container's start. It returns false if the time is too
// short or the start unknown.
func between(earlier, later point, known bool) (used, bool) {
	u := used{at: later.at, memory: later.memory}
	from, cpu := earlier.at, later.cpu-earlier.cpu
	if !known || cpu < 0 || later.started.After(earlier.at) {
		if later.started.IsZero() {
			return u, false
		}
		from, cpu = later.started, later.cpu
	}
	u.window = later.at.Sub(from)
	if u.window < shortest/2 {
		return u, false
	}
	u.cores = float64(cpu) / float64(u.window)
	return u, true
}
