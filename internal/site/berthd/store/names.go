package store

import (
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// SetNames replaces names of an allocation: the names of runs on a node, or without a node the
// names that the user gives it. They live as long as the allocation.
func (s *Store) SetNames(ctx context.Context, a siteconf.Allocation, node string, names []string) (GivenNames, error) {
	now, done, err := s.putNames(ctx, a, node, names)
	if err == nil && !done {
		err = ErrReleased(a)
	}
	return now, err
}

// RestoreNames writes names that etcd has lost. It reports false if etcd has names again, or no
// longer the allocation.
func (s *Store) RestoreNames(ctx context.Context, a siteconf.Allocation, node string, names []string) (GivenNames, bool, error) {
	return s.putNames(ctx, a, node, names, clientv3.Compare(clientv3.CreateRevision(namesKey(a, node)), "=", 0))
}

// putNames writes names if the allocation exists and the other conditions hold. It also writes
// an empty list, which distinguishes removed names from names that etcd has lost.
func (s *Store) putNames(ctx context.Context, a siteconf.Allocation, node string, names []string, and ...clientv3.Cmp) (GivenNames, bool, error) {
	now := GivenNames{Names: append([]string{}, names...)}
	value, err := json.Marshal(namesValue{Login: namesEnd, Names: now.Names})
	if err != nil {
		return GivenNames{}, false, err
	}
	there := append(and, clientv3.Compare(clientv3.Version(podsKey(a)), ">", 0))
	done, err := s.client.Txn(ctx).If(there...).Then(clientv3.OpPut(namesKey(a, node), string(value))).Commit()
	if err != nil {
		return GivenNames{}, false, fmt.Errorf("name %s: %w", a.ID(), err)
	}
	now.Revision = done.Header.Revision
	return now, done.Succeeded, nil
}

// ErrReleased returns the error for an allocation that has been freed.
func ErrReleased(a siteconf.Allocation) error {
	return fmt.Errorf("name %s: it was released meanwhile", a.ID())
}
