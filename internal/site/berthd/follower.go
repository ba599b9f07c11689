package berthd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// follower mirrors all pods below a prefix of etcd's keys: the pods of one network, while it
// has a pod here, or the pods of all networks.
type follower struct {
	// owner is the owner of the network, or "" for all networks.
	owner  string
	cancel context.CancelFunc
	// again ends the watch; the next one begins by listing everything.
	again chan struct{}

	mu sync.Mutex
	// answered reports whether etcd has answered at least once.
	answered bool
	jobs     map[string]siteconf.Allocation
	// at holds the addresses that CNI plugins have given.
	at map[store.Part]netip.Addr
	// names holds the names from users, and the names of services of runs.
	names map[store.Part]store.GivenNames
	// changed is closed and replaced at every change.
	changed chan struct{}
	// problem is the last error of etcd, or nil.
	problem error
}

func newFollower(owner string, cancel context.CancelFunc) *follower {
	return &follower{owner: owner, cancel: cancel, again: make(chan struct{}, 1), jobs: map[string]siteconf.Allocation{}, at: map[store.Part]netip.Addr{}, names: map[store.Part]store.GivenNames{}, changed: make(chan struct{})}
}

// change calls what with the mutex held, and wakes all callers of await.
func (f *follower) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
	close(f.changed)
	f.changed = make(chan struct{})
}

// set replaces all that is known, and reports whether etcd had failed before.
func (f *follower) set(known store.Listing) (wasCut bool) {
	f.change(func() {
		wasCut, f.answered = f.problem != nil, true
		f.jobs, f.at, f.names, f.problem = known.Jobs, known.At, known.Names, nil
	})
	return wasCut
}
func (f *follower) putAddress(where store.Part, address netip.Addr) {
	f.change(func() {
		if f.at[where] = address; !address.IsValid() {
			delete(f.at, where)
		}
	})
}
func (f *follower) putNames(which store.Part, now store.GivenNames) {
	f.change(func() {
		if f.names[which] = now; len(now.Names) == 0 {
			delete(f.names, which)
		}
	})
}
func (f *follower) put(a siteconf.Allocation) { f.change(func() { f.jobs[a.ID()] = a }) }
func (f *follower) fail(err error)            { f.change(func() { f.problem = err }) }

// remove forgets an allocation, unless it was made later than after.
func (f *follower) remove(id string, after int64) {
	f.change(func() {
		if f.jobs[id].After <= after {
			delete(f.jobs, id)
		}
	})
}

// listed reports whether etcd has answered at least once.
func (f *follower) listed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answered
}

// allNames returns the names of all allocations.
func (f *follower) allNames() map[store.Part]store.GivenNames {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.names)
}

// all returns all allocations, with the addresses that plugins have given.
func (f *follower) all() map[string]siteconf.Allocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := maps.Clone(f.jobs)
	for where, address := range f.at {
		if a, known := all[where.ID]; known && a.After == where.After {
			all[where.ID] = a.With(where.Node, address)
		}
	}
	return all
}

// await waits for the allocation of a job that includes a node. A recorded refusal is
// returned as the error. It waits for etcd no longer than attachTimeout, and otherwise until the
// context ends: berthd of the job's first node may be restarting.
func (f *follower) await(ctx context.Context, id, node string) (siteconf.Allocation, error) {
	patience := time.After(attachTimeout)
	for {
		f.mu.Lock()
		a, known := f.jobs[id]
		changed, problem := f.changed, f.problem
		if problem == nil && !f.answered {
			problem = errors.New("no answer yet")
		}
		f.mu.Unlock()
		if known && a.Final {
			return a, &tooLarge{errors.New(a.Problem)}
		}
		if known && a.Problem != "" {
			return a, errors.New(a.Problem)
		}
		if _, here := a.On(node); known && here {
			return a, nil
		}
		fail := func(err error) (siteconf.Allocation, error) {
			if problem != nil {
				return a, fmt.Errorf("wait for the addresses of %s: etcd has not answered: %w", id, problem)
			}
			return a, fmt.Errorf("wait for the addresses of %s: %w: the first node of the job has not asked for them: look for berthd and the plugin there (berthd doctor)", id, err)
		}
		select {
		case <-changed:
		case <-patience:
			if problem != nil {
				return fail(problem)
			}
		case <-ctx.Done():
			return fail(context.Cause(ctx))
		}
	}
}
