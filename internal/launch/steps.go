package launch

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
)

// step is one step of the start of a node, and how it is undone. stop and undo also
// run for a step that has failed, because a part of it may be done. Both may be
// nil.
type step struct {
	name string
	do   func(context.Context) error
	// stop runs before any step is undone, for work that cannot wait until then. A
	// comment at the step has the reason.
	stop func()
	undo func() error
}

// steps holds the steps of a start, and counts the ones that have begun.
type steps struct {
	list  []step
	begun int
}

// run does the steps in order, and calls report after each. It returns the first
// error.
func (s *steps) run(ctx context.Context, report func(name string)) error {
	for _, one := range s.list {
		s.begun++
		if err := one.do(ctx); err != nil {
			return err
		}
		report(one.name)
	}
	return nil
}

// unwind stops and then undoes the steps that have begun, both in reverse order.
func (s *steps) unwind() error {
	begun := slices.Backward(s.list[:s.begun])
	for _, one := range begun {
		if one.stop != nil {
			one.stop()
		}
	}
	var failures []error
	for _, one := range begun {
		if one.undo != nil {
			failures = append(failures, one.undo())
		}
	}
	return errors.Join(failures...)
}

// phases records when each step of the start was done, relative to the start of
// the run.
type phases struct {
	start time.Time
	mu    *sync.Mutex
	done  map[string]time.Duration
}

func newPhases() phases {
	return phases{start: time.Now(), mu: &sync.Mutex{}, done: map[string]time.Duration{}}
}

// note wraps report and records the first time of each step.
func (p phases) note(report func(string)) func(string) {
	return func(step string) {
		p.mu.Lock()
		if _, again := p.done[step]; !again {
			p.done[step] = time.Since(p.start)
		}
		p.mu.Unlock()
		report(step)
	}
}

// all returns a copy of the recorded times.
func (p phases) all() map[string]time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.done)
}
