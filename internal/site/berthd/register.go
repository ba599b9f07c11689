package berthd

import (
	"context"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
)

// register writes the address of this node's tunnels to etcd as soon as it answers, and again
// if etcd has lost it.
func (d *daemon) register(ctx context.Context) error {
	ticker := time.NewTicker(d.config.Collect)
	defer ticker.Stop()
	last := int64(0)
	for {
		err := d.store.Persist(ctx, d.log, "register this node", func(ctx context.Context) error {
			limited, cancel := store.Limited(ctx)
			defer cancel()
			revision, err := d.store.Register(limited, d.node, d.host)
			d.metrics.etcdUp.Store(err == nil)
			if err == nil && revision < last {
				// A watch would stay silent until the new etcd has reached its revision.
				d.log.Warn("etcd has gone back: it was lost, or restored", "from", last, "to", revision)
				d.relist()
			}
			if err == nil {
				last = revision
			}
			return err
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
