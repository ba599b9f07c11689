package berthd

import (
	"context"
	"errors"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// agree implements [localNode]. A pod here whose addresses etcd has given to another job loses its
// network.
func (d *daemon) agree(ctx context.Context, owner string, known store.Listing) ([]string, error) {
	var mine []siteconf.Allocation
	for _, a := range d.pods.ofOwner(owner) {
		if _, there := known.Jobs[a.ID()]; there {
			if a.Login != "" {
				if err := d.store.Hold(ctx, a); err != nil {
					return nil, err
				}
			}
			mine = append(mine, a)
			continue
		}
		switch err := d.store.Restore(ctx, a); {
		case errors.Is(err, store.ErrTaken):
			d.log.Error("a job loses its network, as etcd has lost it", "job", a.ID(), "error", err)
			if _, err := d.drop(ctx, a.ID()); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		default:
			d.log.Warn("etcd had lost the addresses of a job", "job", a.ID())
			known.Jobs[a.ID()] = a
			mine = append(mine, a)
		}
	}
	unpublished := d.network.plugins.unpublished(mine, known)
	return unpublished, d.jobNames.restore(ctx, mine, known)
}

// publishAll implements [localNode].
func (d *daemon) publishAll(ctx context.Context, ids []string) {
	d.network.plugins.publishAll(ctx, ids)
}

// recheck implements [localNode].
func (d *daemon) recheck() { d.network.doubted.Store(true) }

// touch implements [localNode].
func (d *daemon) touch() { d.network.touch() }

// over implements [localNode]. It removes the pod of an allocation that the collector, or the job's
// last node, has freed. Sessions are not over: their lease had expired, so they are written
// again. The pod of a newer allocation stays.
func (d *daemon) over(ctx context.Context, id string, after int64) {
	a, here := d.pods.allocation(id)
	if !here || a.After > after {
		return
	}
	if a.Login != "" {
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
