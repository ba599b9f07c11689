package berthd

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// localNode reacts to what etcd holds. The daemon implements it.
type localNode interface {
	// agree restores what etcd has lost of the pods here in a network, and adds it to what is
	// known. It returns the pods whose addresses etcd lacks.
	agree(ctx context.Context, owner string, known store.Listing) (unpublished []string, err error)
	// publishAll writes addresses of pods here to etcd.
	publishAll(ctx context.Context, ids []string)
	// over is called when an allocation has been freed. A pod here stays if its allocation was
	// made later, after this revision.
	over(ctx context.Context, id string, after int64)
	// recheck verifies the kernel's state, which may have changed while etcd was unreachable.
	recheck()
	// touch requests that the changes be applied. It does not block.
	touch()
}

// watch follows the networks that have a pod here, or all networks. Its mutex is held only to
// find followers: no function that is called meanwhile takes the mutex of another part.
type watch struct {
	store *store.Store
	names *jobNames
	node  localNode
	log   *slog.Logger

	mu sync.Mutex
	// started reports whether followers run. Before that, only their users are counted.
	started bool
	// networks holds the followers of networks, by owner.
	networks map[string]*follower
	// users counts the pods here and the waiting requests that need a follower, by owner.
	users map[string]int
	// everybody follows all pods on hosts that reach all pods, and is nil on others.
	everybody *follower
}

// start starts to follow the networks that have users, and all networks if everywhere is true.
func (w *watch) start(ctx context.Context, everywhere bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.started = true
	if everywhere {
		ctx, cancel := context.WithCancel(ctx)
		w.everybody = newFollower("", cancel)
		go w.run(ctx, w.everybody)
	}
	for owner := range w.users {
		w.startOne(owner)
	}
}

// startOne starts the follower of a network. The caller holds the mutex.
func (w *watch) startOne(owner string) *follower {
	ctx, cancel := context.WithCancel(w.store.Client().Ctx())
	f := newFollower(owner, cancel)
	w.networks[owner] = f
	go w.run(ctx, f)
	return f
}

// follow returns the follower of a network, which runs at least until unfollow. It returns nil
// before start.
func (w *watch) follow(owner string) *follower {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.users[owner]++
	if f := w.networks[owner]; f != nil || !w.started {
		return f
	}
	return w.startOne(owner)
}

// unfollow undoes one call of follow, and ends a follower without users.
func (w *watch) unfollow(owner string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.users[owner]--; w.users[owner] > 0 {
		return
	}
	delete(w.users, owner)
	if f := w.networks[owner]; f != nil {
		f.cancel()
		delete(w.networks, owner)
	}
}

// network returns the follower of a network, or nil.
func (w *watch) network(owner string) *follower {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.networks[owner]
}

// all returns the allocations of all networks, and false if it does not know them.
func (w *watch) all() (map[string]siteconf.Allocation, bool) {
	w.mu.Lock()
	everybody := w.everybody
	w.mu.Unlock()
	if everybody == nil || !everybody.listed() {
		return nil, false
	}
	return everybody.all(), true
}

// relist makes all followers list everything again.
func (w *watch) relist() {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.Collect(maps.Values(w.networks))
	if w.everybody != nil {
		all = append(all, w.everybody)
	}
	for _, f := range all {
		select {
		case f.again <- struct{}{}:
		default:
		}
	}
}

// run follows until its context ends, and tries again after every error of etcd.
func (w *watch) run(ctx context.Context, f *follower) {
	for ctx.Err() == nil {
		err := w.followOnce(ctx, f)
		f.fail(err)
		if ctx.Err() == nil {
			w.log.Warn("follow pods", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(store.Retry):
		}
	}
}

func (w *watch) followOnce(ctx context.Context, f *follower) error {
	known, err := w.store.List(ctx, f.owner)
	if err != nil {
		return err
	}
	var unpublished []string
	if f.owner != "" {
		if unpublished, err = w.node.agree(ctx, f.owner, known); err != nil {
			return err
		}
	}
	// latest has the newest allocation of each job in etcd's order. The new allocation of a
	// reused job number may arrive before the former one is deleted.
	latest := make(map[string]int64, len(known.Jobs))
	for id, a := range known.Jobs {
		latest[id] = a.After
	}
	if f.set(known) {
		// The reason why etcd was unreachable may have removed routes of this host: an
		// interface that goes down loses its routes.
		w.node.recheck()
	}
	w.node.touch()
	// Publish while the watch runs, because requests wait for the watch.
	var publishing sync.WaitGroup
	defer publishing.Wait()
	publishing.Go(func() { w.node.publishAll(ctx, unpublished) })
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-f.again:
			cancel()
		case <-watched.Done():
		}
	}()
	return w.store.Watch(watched, f.owner, known.Revision, func(c store.Change) {
		switch {
		case c.Owner != nil:
			f.putNames(*c.Owner, c.Names)
			w.names.remember(*c.Owner, c.Names)
		case c.At != nil:
			f.putAddress(*c.At, c.Address)
		case c.Allocation != nil:
			f.put(*c.Allocation)
			latest[c.ID] = c.Allocation.After
		default:
			after, known := latest[c.ID]
			if !known {
				after = math.MaxInt64
			}
			delete(latest, c.ID)
			f.remove(c.ID, after)
			w.node.over(ctx, c.ID, after)
		}
		w.node.touch()
	})
}
