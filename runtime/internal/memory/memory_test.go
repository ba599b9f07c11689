package memory

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

const mb = 1 << 20

func TestInterval(t *testing.T) {
	p := DefaultPolicy()
	for name, c := range map[string]struct {
		used, limit uint64
		rate        float64
		least, most time.Duration
	}{
		"idle, far away":       {10 * mb, 16 << 30, 0, p.Longest, p.Longest},
		"idle, small limit":    {10 * mb, 64 * mb, 0, 30 * time.Millisecond, 60 * time.Millisecond},
		"idle, at the limit":   {64 * mb, 64 * mb, 0, 25 * time.Millisecond, 40 * time.Millisecond},
		"growing fast":         {100 * mb, 200 * mb, 2e9, 20 * time.Millisecond, 30 * time.Millisecond},
		"growing fast, close":  {199 * mb, 200 * mb, 2e9, p.Shortest, p.Shortest},
		"growing slowly":       {100 * mb, 200 * mb, 1e6, 30 * time.Millisecond, 80 * time.Millisecond},
		"limit without bounds": {mb, math.MaxInt64, 1e9, p.Longest, p.Longest},
	} {
		got := p.interval(c.used, c.limit, c.rate)
		if got < c.least || got > c.most {
			t.Errorf("%s: %s, want %s to %s", name, got, c.least, c.most)
		}
	}
}

// meter is a Meter made of two functions.
type meter struct {
	idle    func() bool
	measure func(ids []string) (map[string]Sample, error)
}

func (m meter) Idle() bool { return m.idle != nil && m.idle() }

func (m meter) Measure(ids []string) (map[string]Sample, error) { return m.measure(ids) }

// simulate runs a watcher with a simulated clock against memory that is a
// function of time. It returns how far the limit was exceeded when the container
// was ended, and the number of looks; ended is false if it never was.
func simulate(t *testing.T, policy Policy, limit uint64, span time.Duration, used func(time.Duration) uint64) (past uint64, looks int, ended bool) {
	t.Helper()
	var clock time.Duration
	w := New(policy,
		meter{measure: func([]string) (map[string]Sample, error) {
			looks++
			v := used(clock)
			return map[string]Sample{"c": {Bound: v + 50*mb, Charged: func() uint64 { return v }, Exact: func() uint64 { return v }}}, nil
		}},
		func(_ context.Context, _ string, used, limit uint64) { past, ended = used-limit, true })
	start := time.Unix(0, 0)
	w.now = func() time.Time { return start.Add(clock) }
	w.Set("c", limit)
	for clock < span && !ended {
		next, any := w.look(t.Context())
		if !any {
			break
		}
		clock += next
	}
	return past, looks, ended
}

func TestFastGrowthIsCaughtWithinTheAllowance(t *testing.T) {
	policy := DefaultPolicy()
	for _, limit := range []uint64{32 * mb, 200 * mb, 2 << 30} {
		for _, quiet := range []time.Duration{0, 333 * time.Millisecond, 10 * time.Second} {
			past, _, ended := simulate(t, policy, limit, quiet+20*time.Second, func(at time.Duration) uint64 {
				if at < quiet {
					return 5 * mb
				}
				return 5*mb + uint64((at-quiet).Seconds()*3.7e9)
			})
			if !ended {
				t.Errorf("limit %d MB, idle for %s: never ended", limit/mb, quiet)
			}
			if past > uint64(policy.Allowance) {
				t.Errorf("limit %d MB, idle for %s: %d MB past the limit", limit/mb, quiet, past/mb)
			}
		}
	}
}

func TestSteadyGrowthIsCaughtClosely(t *testing.T) {
	past, _, ended := simulate(t, DefaultPolicy(), 1<<30, time.Minute, func(at time.Duration) uint64 {
		return uint64(at.Seconds() * 500e6)
	})
	if !ended || past > 8*mb {
		t.Errorf("ended %v, %d MB past the limit", ended, past/mb)
	}
}

func TestIdleContainersCostLittle(t *testing.T) {
	for limit, most := range map[uint64]int{64 * mb: 230, 512 * mb: 70, 8 << 30: 11} {
		_, looks, ended := simulate(t, DefaultPolicy(), limit, 10*time.Second, func(time.Duration) uint64 { return 10 * mb })
		if ended || looks > most {
			t.Errorf("limit %d MB: %d looks in 10 s, want at most %d (ended %v)", limit/mb, looks, most, ended)
		}
	}
}

// Idle containers are not even measured, until they run or get a new limit.
func TestIdleContainersAreNotMeasured(t *testing.T) {
	idle, measured, ended := true, 0, false
	w := New(DefaultPolicy(), meter{
		idle: func() bool { return idle },
		measure: func([]string) (map[string]Sample, error) {
			measured++
			return map[string]Sample{"a": {Bound: 100 * mb}}, nil
		},
	}, func(context.Context, string, uint64, uint64) { ended = true })
	w.Set("a", 200*mb)
	for range 5 {
		w.look(t.Context())
	}
	if measured != 1 {
		t.Errorf("measured %d times while idle, want once", measured)
	}
	clock := time.Unix(0, 0)
	w.now = func() time.Time { return clock }
	w.ran = clock
	busy, _ := w.look(t.Context())
	clock = clock.Add(time.Minute)
	if quiet, _ := w.look(t.Context()); quiet <= busy || quiet > busy*5 {
		t.Errorf("looks every %s when quiet, %s before", quiet, busy)
	}
	idle = false
	w.look(t.Context())
	if measured != 2 {
		t.Errorf("not measured after it ran")
	}
	idle = true
	w.Set("a", 50*mb)
	w.look(t.Context())
	if !ended {
		t.Error("a limit below the use of an idle container has no effect")
	}
}

// The dear grades are read only when the cheap one cannot decide.
func TestGauge(t *testing.T) {
	calls := map[string]int{}
	sample := func(bound, charged, exact uint64) Sample {
		return Sample{
			Bound:   bound,
			Charged: func() uint64 { calls["charged"]++; return charged },
			Exact:   func() uint64 { calls["exact"]++; return exact },
		}
	}
	for name, c := range map[string]struct {
		s              Sample
		used           uint64
		charged, exact int
	}{
		"far below":               {sample(40, 30, 20), 40, 0, 0},
		"mapped files":            {sample(150, 60, 50), 60, 1, 0},
		"shared between children": {sample(300, 200, 90), 90, 1, 1},
		"really above":            {sample(300, 200, 150), 150, 1, 1},
	} {
		clear(calls)
		if got := gauge(c.s, 100); got != c.used || calls["charged"] != c.charged || calls["exact"] != c.exact {
			t.Errorf("%s: used %d, calls %v", name, got, calls)
		}
	}
}

func TestLimitsAreSetAndRemoved(t *testing.T) {
	ended := map[string]int{}
	w := New(DefaultPolicy(),
		meter{measure: func(ids []string) (map[string]Sample, error) {
			samples := map[string]Sample{}
			for _, id := range ids {
				samples[id] = Sample{Bound: 100 * mb}
			}
			return samples, nil
		}},
		func(_ context.Context, id string, _, _ uint64) { ended[id]++ })
	look := func() bool { _, any := w.look(t.Context()); return any }
	if look() {
		t.Error("nothing to watch, but it looks")
	}
	w.Set("a", 200*mb)
	w.Set("b", 50*mb)
	look()
	look()
	if ended["a"] != 0 || ended["b"] != 1 {
		t.Errorf("ended %v, want b once", ended)
	}
	w.Set("a", 90*mb) // a resize below its use
	look()
	if ended["a"] != 1 || look() {
		t.Errorf("after the resize: ended %v", ended)
	}
}

// A limit that arrives during a look is checked against a new measurement, even
// if nothing runs any more.
func TestLimitAppliedDuringScan(t *testing.T) {
	var w *Watcher
	ended := false
	resize := func() { w.Set("a", 50*mb) }
	w = New(DefaultPolicy(), meter{
		idle: func() bool { return true },
		measure: func([]string) (map[string]Sample, error) {
			resize()
			resize = func() {}
			return map[string]Sample{"a": {Bound: 100 * mb}}, nil
		},
	}, func(context.Context, string, uint64, uint64) { ended = true })
	w.Set("a", 200*mb)
	w.look(t.Context())
	w.look(t.Context())
	if !ended {
		t.Error("the new limit has no effect")
	}
}

func TestUnreadableProcIsTolerated(t *testing.T) {
	w := New(DefaultPolicy(), meter{measure: func([]string) (map[string]Sample, error) { return nil, errors.New("no descriptors") }}, nil)
	w.Set("a", mb)
	if next, any := w.look(t.Context()); !any || next <= 0 {
		t.Errorf("next look %s, %v", next, any)
	}
}

func TestRunEndsAndReacts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	exceeded := make(chan string, 1)
	w := New(DefaultPolicy(),
		meter{measure: func([]string) (map[string]Sample, error) { return map[string]Sample{"a": {Bound: 2 * mb}}, nil }},
		func(_ context.Context, id string, _, _ uint64) { exceeded <- id })
	done := make(chan struct{})
	go func() { w.Run(ctx); close(done) }()
	w.Set("a", mb)
	select {
	case <-exceeded:
	case <-time.After(10 * time.Second):
		t.Error("a new limit is not looked at")
	}
	cancel()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("Run does not end")
	}
}
