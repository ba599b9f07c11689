package memory

import (
	"context"
	"sync"
	"time"
)

// Sample holds three estimates of the memory of one container in bytes, called grades. Each
// grade is at most the one before it, and much more expensive. A grade is measured only if the
// cheaper one cannot decide.
type Sample struct {
	// Bound counts all resident memory, including mapped files.
	Bound uint64
	// Charged counts the memory that the kernel cannot reclaim. A page shared by several
	// processes counts for each of them.
	Charged func() uint64
	// Exact counts the same memory, but shared pages only once.
	Exact func() uint64
}

// Meter measures containers.
type Meter interface {
	// Idle reports whether it is certain that no container has grown since the last
	// Measure. It is called far more often than Measure.
	Idle() bool
	// Measure returns the memory of the containers with the given IDs. A container that
	// is missing in the result uses no memory.
	Measure(ids []string) (map[string]Sample, error)
}

// Exceeded is called, from Run, for a container above its limit. The watcher
// then forgets the container.
type Exceeded func(ctx context.Context, id string, used, limit uint64)

// Watcher watches containers until its Run ends.
type Watcher struct {
	policy   Policy
	meter    Meter
	exceeded Exceeded
	now      func() time.Time

	// ran is the time when a container was last seen to have run; only Run uses it.
	ran time.Time

	mu      sync.Mutex
	limits  map[string]uint64
	last    map[string]reading
	changed chan struct{}
}

// reading is the result of a measurement, in bytes.
type reading struct {
	used uint64
	at   time.Time
}

// New returns a watcher that does nothing until Run.
func New(policy Policy, meter Meter, exceeded Exceeded) *Watcher {
	return &Watcher{
		policy: policy, meter: meter, exceeded: exceeded, now: time.Now,
		limits: map[string]uint64{}, last: map[string]reading{},
		changed: make(chan struct{}, 1),
	}
}

// Set sets the limit of a container in bytes; 0 removes it.
func (w *Watcher) Set(id string, limit uint64) {
	w.mu.Lock()
	delete(w.last, id)
	if limit == 0 {
		delete(w.limits, id)
	} else {
		w.limits[id] = limit
	}
	w.mu.Unlock()
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Limit returns the limit of a container in bytes; 0 means none.
func (w *Watcher) Limit(id string) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limits[id]
}

// Run measures containers until ctx is done. While none has a limit, it sleeps.
func (w *Watcher) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
		case <-timer.C:
		}
		begin := w.now()
		next, any := w.look(ctx)
		if !any {
			timer.Stop()
			continue
		}
		timer.Reset(max(next, time.Duration(w.policy.Rest)*w.now().Sub(begin)))
	}
}

// look measures every container with a limit once, and calls exceeded for those above it.
// It returns the time until the next measurement, and reports whether any has a limit.
func (w *Watcher) look(ctx context.Context) (next time.Duration, any bool) {
	ids, limits := w.watched()
	if len(ids) == 0 {
		return 0, false
	}
	now := w.now()
	next = w.policy.Longest
	if w.meter.Idle() && w.known(ids) {
		for _, id := range ids {
			next = min(next, w.policy.interval(w.again(id, now), limits[id], 0))
		}
		if now.Sub(w.ran) >= w.policy.Quiet {
			next = min(next*time.Duration(w.policy.Slack), w.policy.Longest)
		}
		return next, true
	}
	w.ran = now
	samples, err := w.meter.Measure(ids)
	if err != nil {
		// Continue: /proc may be unreadable for a moment, for example when descriptors
		// run out.
		return w.policy.Shortest * 10, true
	}
	for _, id := range ids {
		limit := limits[id]
		used := gauge(samples[id], limit)
		if used > limit {
			w.Set(id, 0)
			w.exceeded(ctx, id, used, limit)
			continue
		}
		next = min(next, w.policy.interval(used, limit, w.rate(id, used, limit, now)))
	}
	return next, true
}

// known reports whether every container has been measured since its limit was last set.
func (w *Watcher) known(ids []string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range ids {
		if _, ok := w.last[id]; !ok {
			return false
		}
	}
	return true
}

// again returns the last measured memory of a container, and records it for the time now.
func (w *Watcher) again(id string, now time.Time) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last[id]
	if ok {
		last.at = now
		w.last[id] = last
	}
	return last.used
}

// gauge returns the memory in bytes in the cheapest grade that decides.
func gauge(s Sample, limit uint64) uint64 {
	used := s.Bound
	if used > limit/2 && s.Charged != nil {
		used = min(used, s.Charged())
	}
	if used > limit && s.Exact != nil {
		used = min(used, s.Exact())
	}
	return used
}

func (w *Watcher) watched() (ids []string, limits map[string]uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	limits = make(map[string]uint64, len(w.limits))
	for id, limit := range w.limits {
		ids = append(ids, id)
		limits[id] = limit
	}
	return ids, limits
}

// rate records a measurement, and returns the growth of a container in bytes per second
// since the last one; 0 if it shrank. A measurement is not kept if the limit has changed
// meanwhile: the new limit must be compared with a measurement, too.
func (w *Watcher) rate(id string, used, limit uint64, now time.Time) float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.limits[id] != limit {
		return 0
	}
	previous, ok := w.last[id]
	w.last[id] = reading{used, now}
	elapsed := now.Sub(previous.at).Seconds()
	if !ok || used <= previous.used || elapsed <= 0 {
		return 0
	}
	return float64(used-previous.used) / elapsed
}
