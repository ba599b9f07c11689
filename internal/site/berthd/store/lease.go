package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// put returns the operation that writes an allocation. A job's allocation lives as long as
// Slurm's controller knows the job. Only a login host knows its sessions, so their
// allocation lives as long as the host refreshes its lease.
func (s *Store) put(a siteconf.Allocation) (clientv3.Op, error) {
	value, err := json.Marshal(a)
	if err != nil || a.Login == "" {
		return clientv3.OpPut(podsKey(a), string(value)), err
	}
	lease := clientv3.LeaseID(s.lease.Load())
	if lease == clientv3.NoLease {
		return clientv3.Op{}, errors.New("this host has no lease: etcd has not answered since berthd was started")
	}
	return clientv3.OpPut(podsKey(a), string(value), clientv3.WithLease(lease)), nil
}

// Hold attaches an allocation in etcd to the current lease.
func (s *Store) Hold(ctx context.Context, a siteconf.Allocation) error {
	fail := func(err error) error { return fmt.Errorf("refresh the address of %s: %w", a.ID(), err) }
	put, err := s.put(a)
	if err != nil {
		return fail(err)
	}
	same := clientv3.Compare(clientv3.Value(podsKey(a)), "=", string(put.ValueBytes()))
	if _, err := s.client.Txn(ctx).If(same).Then(put).Commit(); err != nil {
		return fail(err)
	}
	return nil
}

// KeepLease keeps a lease while the daemon runs. When the lease is lost, KeepLease gets
// another one, and relist makes followers write again the keys that depend on it.
func (s *Store) KeepLease(ctx context.Context, log *slog.Logger, relist func()) error {
	return s.Persist(ctx, log, "keep the lease of this host", func(ctx context.Context) error {
		limited, cancel := Limited(ctx)
		defer cancel()
		lease, err := s.client.Grant(limited, int64(s.config.Lease.Seconds()))
		if err != nil {
			return fmt.Errorf("get a lease: %w", errors.Join(err, context.Cause(limited)))
		}
		refreshed, err := s.client.KeepAlive(ctx, lease.ID)
		if err != nil {
			return fmt.Errorf("refresh the lease: %w", err)
		}
		s.lease.Store(int64(lease.ID))
		relist()
		for range refreshed {
		}
		return errors.New("the lease is lost")
	})
}
