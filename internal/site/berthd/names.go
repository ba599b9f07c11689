package berthd

import (
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// SetNames replaces names of an allocation: the names of runs on a node, or without a node the
// names that the user gives it. They live as long as the allocation.
func (s *Store) SetNames(ctx context.Context, a siteconf.Allocation, node string, names []string) (givenNames, error) {
	now, done, err := s.putNames(ctx, a, node, names)
	if err == nil && !done {
		err = errReleased(a)
	}
	return now, err
}

// putNames writes names if the allocation exists and the other conditions hold. It also writes
// an empty list, which tells removed names from names that etcd has lost.
func (s *Store) putNames(ctx context.Context, a siteconf.Allocation, node string, names []string, and ...clientv3.Cmp) (givenNames, bool, error) {
	now := givenNames{names: append([]string{}, names...)}
	value, err := json.Marshal(namesValue{Login: namesEnd, Names: now.names})
	if err != nil {
		return givenNames{}, false, err
	}
	there := append(and, clientv3.Compare(clientv3.Version(podsKey(a)), ">", 0))
	done, err := s.client.Txn(ctx).If(there...).Then(clientv3.OpPut(namesKey(a, node), string(value))).Commit()
	if err != nil {
		return givenNames{}, false, fmt.Errorf("name %s: %w", a.ID(), err)
	}
	now.revision = done.Header.Revision
	return now, done.Succeeded, nil
}

func errReleased(a siteconf.Allocation) error {
	return fmt.Errorf("name %s: it was released meanwhile", a.ID())
}
