package berthd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

// follower mirrors all pods below a prefix of etcd's keys: the pods of one network, while it
// has a pod here, or the pods of all networks.
type follower struct {
	prefix string
	cancel context.CancelFunc
	// again ends the watch; the next one begins by listing everything.
	again chan struct{}

	mu sync.Mutex
	// heard is true after etcd has answered once.
	heard bool
	jobs  map[string]siteconf.Allocation
	// at holds the addresses that CNI plugins have given.
	at map[place]netip.Addr
	// names holds the names from users, and the names of services of runs.
	names map[nameOwner]givenNames
	// changed is closed and replaced at every change.
	changed chan struct{}
	// problem is the last error of etcd, or nil.
	problem error
}

// follow returns the follower of a network, which runs at least until unfollow.
func (d *Daemon) follow(owner string) *follower {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting[owner]++
	if f := d.users[owner]; f != nil {
		return f
	}
	ctx, cancel := context.WithCancel(d.store.client.Ctx())
	f := newFollower(networkPrefix(owner), cancel)
	d.users[owner] = f
	go d.run(ctx, f, func() []siteconf.Allocation { return d.ofOwner(owner) })
	return f
}

// unfollow undoes one call of follow.
func (d *Daemon) unfollow(owner string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting[owner]--
	d.endUnused(owner)
}

// endUnused ends the follower of a network that has no pod here and that no request waits for.
// The caller holds the mutex.
func (d *Daemon) endUnused(owner string) {
	if d.waiting[owner] > 0 {
		return
	}
	delete(d.waiting, owner)
	for _, local := range d.local {
		if local.Owner() == owner {
			return
		}
	}
	if f := d.users[owner]; f != nil {
		f.cancel()
		delete(d.users, owner)
	}
}

// followAll follows all networks, on a host that reaches all pods.
func (d *Daemon) followAll(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	d.everybody = newFollower(networksKey, cancel)
	go d.run(ctx, d.everybody, func() []siteconf.Allocation { return nil })
}

func newFollower(prefix string, cancel context.CancelFunc) *follower {
	return &follower{prefix: prefix, cancel: cancel, again: make(chan struct{}, 1), jobs: map[string]siteconf.Allocation{}, at: map[place]netip.Addr{}, names: map[nameOwner]givenNames{}, changed: make(chan struct{})}
}

// run follows until its context ends, and tries again after every error of etcd. keep returns
// the allocations that etcd must have.
func (d *Daemon) run(ctx context.Context, f *follower, keep func() []siteconf.Allocation) {
	for ctx.Err() == nil {
		err := d.followOnce(ctx, f, keep)
		f.fail(err)
		if ctx.Err() == nil {
			d.log.Warn("follow pods", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
}

func (d *Daemon) followOnce(ctx context.Context, f *follower, keep func() []siteconf.Allocation) error {
	known, err := d.store.list(ctx, f.prefix)
	if err != nil {
		return err
	}
	all := known.jobs
	var mine []siteconf.Allocation
	for _, a := range keep() {
		if _, there := all[a.ID()]; there {
			if a.Login != "" {
				if err := d.store.Hold(ctx, a); err != nil {
					return err
				}
			}
			mine = append(mine, a)
			continue
		}
		switch err := d.store.Restore(ctx, a); {
		case errors.Is(err, errTaken):
			d.log.Error("a job loses its network, as etcd has lost it", "job", a.ID(), "error", err)
			if _, err := d.drop(ctx, a.ID()); err != nil {
				return err
			}
		case err != nil:
			return err
		default:
			d.log.Warn("etcd had lost the addresses of a job", "job", a.ID())
			all[a.ID()] = a
			mine = append(mine, a)
		}
	}
	// latest has the newest allocation of each job in etcd's order. The new allocation of a
	// reused job number may arrive before the former one is deleted.
	latest := make(map[string]int64, len(all))
	for id, a := range all {
		latest[id] = a.After
	}
	untold := d.untold(mine, known)
	if err := d.jobNames.restore(ctx, mine, known); err != nil {
		return err
	}
	if f.set(known) {
		// Whatever cut etcd off may have removed routes of this host, as an interface that was
		// down loses its routes.
		d.doubted.Store(true)
	}
	d.touch()
	// Run beside the watch, which others wait for. It ends by itself.
	var told sync.WaitGroup
	defer told.Wait()
	told.Go(func() { d.tell(ctx, untold) })
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.again:
			cancel()
		case <-watched.Done():
		}
	}()
	return d.store.Watch(watched, f.prefix, known.revision, func(c change) {
		switch {
		case c.owner != nil:
			f.putNames(*c.owner, c.names)
			d.jobNames.remember(*c.owner, c.names)
		case c.at != nil:
			f.putAddress(*c.at, c.address)
		case c.allocation != nil:
			f.put(*c.allocation)
			latest[c.id] = c.allocation.After
		default:
			after, known := latest[c.id]
			if !known {
				after = math.MaxInt64
			}
			delete(latest, c.id)
			f.remove(c.id, after)
			d.over(ctx, c.id, after)
		}
		d.touch()
	})
}

// ofOwner returns the jobs in a network that have a pod here.
func (d *Daemon) ofOwner(owner string) []siteconf.Allocation {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []siteconf.Allocation
	for _, local := range d.local {
		if local.Owner() == owner {
			all = append(all, local.Allocation)
		}
	}
	return all
}

// relist makes all followers list everything again.
func (d *Daemon) relist() {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := slices.Collect(maps.Values(d.users))
	if d.everybody != nil {
		all = append(all, d.everybody)
	}
	d.gateways.relist()
	for _, f := range all {
		select {
		case f.again <- struct{}{}:
		default:
		}
	}
}

// over removes the pod of an allocation that the collector, or the job's last node, has freed.
// Sessions are not over: their lease had expired, so they are written again. The pod of a
// newer allocation stays.
func (d *Daemon) over(ctx context.Context, id string, after int64) {
	d.mu.Lock()
	local := d.local[id]
	d.mu.Unlock()
	if local == nil || local.After > after {
		return
	}
	if local.Login != "" {
		d.relist()
		return
	}
	// Use another goroutine, because removing the last pod of a network ends the follower
	// that calls this.
	go func() {
		if _, err := d.drop(context.WithoutCancel(ctx), id); err != nil {
			d.log.Error("remove the pod of a job that is over", "job", id, "error", err)
		}
	}()
}

func (f *follower) change(what func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	what()
	close(f.changed)
	f.changed = make(chan struct{})
}

// set replaces all that is known, and reports whether etcd had failed before.
func (f *follower) set(known listing) (wasCut bool) {
	f.change(func() {
		wasCut, f.heard = f.problem != nil, true
		f.jobs, f.at, f.names, f.problem = known.jobs, known.at, known.names, nil
	})
	return wasCut
}
func (f *follower) putAddress(where place, address netip.Addr) {
	f.change(func() {
		if f.at[where] = address; !address.IsValid() {
			delete(f.at, where)
		}
	})
}
func (f *follower) putNames(which nameOwner, now givenNames) {
	f.change(func() {
		if f.names[which] = now; len(now.names) == 0 {
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
	return f.heard
}

// allNames returns the names of all allocations.
func (f *follower) allNames() map[nameOwner]givenNames {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.names)
}

func (f *follower) all() map[string]siteconf.Allocation {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := maps.Clone(f.jobs)
	for where, address := range f.at {
		if a, known := all[where.id]; known && a.After == where.after {
			all[where.id] = with(a, where.node, address)
		}
	}
	return all
}

// await waits for the allocation of a job that includes a node.
func (f *follower) await(ctx context.Context, id, node string) (siteconf.Allocation, error) {
	for {
		f.mu.Lock()
		a, known := f.jobs[id]
		changed, problem := f.changed, f.problem
		f.mu.Unlock()
		if known && a.Problem != "" {
			return a, errors.New(a.Problem)
		}
		if _, here := a.On(node); known && here {
			return a, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if problem == nil {
				problem = errors.New("the first node of the job has not asked for them: does berthd run there?")
			}
			return a, fmt.Errorf("wait for the addresses of %s: %w: %w", id, context.Cause(ctx), problem)
		}
	}
}
