package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/vxlan"
)

const (
	// gatewayLease is the time, in seconds, that a silent gateway counts as alive. Together with
	// the time that etcd needs to notice and nodes need to change their routes, it stays below
	// five seconds, the promised time for another gateway to take over.
	gatewayLease = 3
	// carrierPeriod is the time between two checks of a gateway's own links.
	carrierPeriod = time.Second
)

// Announce announces this host as a gateway. Its key disappears when this daemon ends, the
// host is cut off, or one of its links goes down. A daemon that returns before the previous
// lease has expired takes over the key. apply configures the kernel of this node.
func (g *Gateways) Announce(ctx context.Context, apply func(ctx context.Context, check bool) error) error {
	return g.store.Persist(ctx, g.log, "be a gateway", func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		if err := vxlan.Carries(g.host, g.config.Interfaces); err != nil {
			return err
		}
		// An interface that was down may have been recreated, and not forward yet. Other
		// failures here do not stop packets.
		if err := apply(ctx, true); err != nil {
			g.log.Error("bring the network of this gateway up to date", "error", err)
		}
		limited, done := store.Limited(ctx)
		defer done()
		lease, err := g.store.Client().Grant(limited, gatewayLease)
		if err != nil {
			return fmt.Errorf("get a lease: %w", errors.Join(err, context.Cause(limited)))
		}
		if lease.TTL > gatewayLease {
			g.log.Warn("etcd gives no lease as short as a gateway's should be: its election timeout is long", "seconds", lease.TTL)
		}
		if _, err := g.store.Client().Put(limited, store.GatewaysKey+g.node, g.host.String(), clientv3.WithLease(lease.ID)); err != nil {
			return fmt.Errorf("announce this gateway: %w", errors.Join(err, context.Cause(limited)))
		}
		refreshed, err := g.store.Client().KeepAlive(ctx, lease.ID)
		if err != nil {
			return fmt.Errorf("refresh the lease: %w", err)
		}
		return g.watchLinks(ctx, lease.ID, refreshed)
	})
}

// watchLinks returns when the lease is lost, or revokes it when a link goes down.
func (g *Gateways) watchLinks(ctx context.Context, lease clientv3.LeaseID, refreshed <-chan *clientv3.LeaseKeepAliveResponse) error {
	ticker := time.NewTicker(carrierPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, more := <-refreshed:
			if !more {
				return errors.New("the lease is lost")
			}
		case <-ticker.C:
			down := vxlan.Carries(g.host, g.config.Interfaces)
			if down == nil {
				continue
			}
			limited, done := store.Limited(ctx)
			_, err := g.store.Client().Revoke(limited, lease)
			done()
			return errors.Join(down, err)
		}
	}
}
