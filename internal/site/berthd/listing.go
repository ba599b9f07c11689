package berthd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// givenNames holds names as they are in etcd.
type givenNames struct {
	// names is nil if etcd has none, and empty if the user has removed them.
	names []string
	// revision is the revision of etcd at their last change.
	revision int64
}

// namesValue is the value of a key of names.
type namesValue struct {
	// Login is for a berthd without support for names. It takes every key below networks/ for
	// an allocation, and ignores this one as sessions on another host, without pods.
	Login string   `json:"login"`
	Names []string `json:"names"`
}

func decodeNames(kv *mvccpb.KeyValue) (givenNames, error) {
	var v namesValue
	if err := json.Unmarshal(kv.Value, &v); err != nil {
		return givenNames{}, fmt.Errorf("read names in etcd: %w", err)
	}
	return givenNames{append([]string{}, v.Names...), kv.ModRevision}, nil
}

// listing holds everything found below a prefix.
type listing struct {
	jobs map[string]siteconf.Allocation
	at   map[place]netip.Addr
	// names holds the names that users have given, and the names under which runs
	// serve.
	names map[nameOwner]givenNames
	// revision is etcd's revision when the listing was read.
	revision int64
}

// Networks returns the allocations below a prefix, keyed by ID, and the revision at
// which they were read.
func (s *Store) Networks(ctx context.Context, prefix string) (map[string]siteconf.Allocation, int64, error) {
	known, err := s.list(ctx, prefix)
	return known.jobs, known.revision, err
}

func (s *Store) list(ctx context.Context, prefix string) (listing, error) {
	// Without a limit, a request to an unreachable etcd would never fail, and nobody
	// would learn about the outage.
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	got, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return listing{}, fmt.Errorf("ask etcd for pods (%s): %w", prefix, errors.Join(err, context.Cause(ctx)))
	}
	known := listing{jobs: map[string]siteconf.Allocation{}, at: map[place]netip.Addr{}, names: map[nameOwner]givenNames{}, revision: got.Header.Revision}
	for _, kv := range got.Kvs {
		if where, found := placeOf(string(kv.Key)); found {
			if known.at[where], err = netip.ParseAddr(string(kv.Value)); err != nil {
				return listing{}, fmt.Errorf("read address of %s in etcd: %w", where.id, err)
			}
			continue
		}
		if which, found := parseNamesKey(string(kv.Key)); found {
			if known.names[which], err = decodeNames(kv); err != nil {
				return listing{}, err
			}
			continue
		}
		if !isPods(string(kv.Key)) {
			continue
		}
		a, err := decode(kv.Value)
		if err != nil {
			return listing{}, err
		}
		known.jobs[a.ID()] = a
	}
	return known, nil
}

// change is a change of an allocation. If all fields but id are empty, the allocation
// is over.
type change struct {
	id         string
	allocation *siteconf.Allocation
	// at is set if the change is of an address. The address is removed if address is
	// invalid.
	at      *place
	address netip.Addr
	// owner is set if the change is of names.
	owner *nameOwner
	names givenNames
}

// Watch reports changes of allocations below a prefix since a revision. It returns
// when the context ends or the connection is lost.
func (s *Store) Watch(ctx context.Context, prefix string, since int64, report func(change)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for events := range s.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch pods in etcd (%s): %w", prefix, err)
		}
		for _, event := range events.Events {
			c := change{id: path.Base(string(event.Kv.Key))}
			where, found := placeOf(string(event.Kv.Key))
			which, isNames := parseNamesKey(string(event.Kv.Key))
			switch {
			case isNames:
				c.owner, c.names.revision = &which, event.Kv.ModRevision
				if event.Type == clientv3.EventTypePut {
					var err error
					if c.names, err = decodeNames(event.Kv); err != nil {
						return err
					}
				}
			case found:
				c.at = &where
				if event.Type == clientv3.EventTypePut {
					var err error
					if c.address, err = netip.ParseAddr(string(event.Kv.Value)); err != nil {
						return fmt.Errorf("read address of %s in etcd: %w", where.id, err)
					}
				}
			case !isPods(string(event.Kv.Key)):
				continue
			case event.Type == clientv3.EventTypePut:
				a, err := decode(event.Kv.Value)
				if err != nil {
					return err
				}
				c.allocation = &a
			}
			report(c)
		}
	}
	return fmt.Errorf("watch pods in etcd (%s): the connection is lost", prefix)
}

func decode(value []byte) (siteconf.Allocation, error) {
	var a siteconf.Allocation
	if err := json.Unmarshal(value, &a); err != nil {
		return a, fmt.Errorf("read an allocation in etcd: %w", err)
	}
	return a, nil
}
