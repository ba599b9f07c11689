package berthd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// Publish tells all nodes which address plugins gave to the pod of an allocation on a
// node. Each node writes only its own key.
func (s *Store) Publish(ctx context.Context, a siteconf.Allocation, node string) error {
	pod, _ := a.On(node)
	fail := func(err error) error { return fmt.Errorf("register address %s of %s: %w", pod.Address, a.ID(), err) }
	where := place{a.ID(), a.After, node}
	seen, err := s.checkUnused(ctx, pod.Address, where)
	if err != nil {
		return fail(err)
	}
	put := clientv3.OpPut(atKey(a, node), pod.Address.String())
	if a.Login != "" {
		put = clientv3.OpPut(atKey(a, node), pod.Address.String(), clientv3.WithLease(clientv3.LeaseID(s.lease.Load())))
	}
	done, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.Version(podsKey(a)), ">", 0)).Then(put).Commit()
	if err != nil {
		return fail(err)
	}
	if !done.Succeeded {
		return fail(errors.New("it was released meanwhile"))
	}
	// If two nodes publish the same address at once, each may have found it free.
	// Then neither keeps it.
	if err := s.checkUnusedSince(ctx, pod.Address, where, seen); err != nil {
		return fail(errors.Join(err, s.withdraw(ctx, a, node)))
	}
	return nil
}

// withdraw undoes Publish.
func (s *Store) withdraw(ctx context.Context, a siteconf.Allocation, node string) error {
	if _, err := s.client.Delete(ctx, atKey(a, node)); err != nil {
		return fmt.Errorf("take back the address of %s: %w", a.ID(), err)
	}
	return nil
}

// goneLimit bounds the wait until etcd learns that an address was returned.
const goneLimit = 3 * time.Second

// checkUnused returns an error if a pod on another node has the address. Names would lead
// to both pods, and the name server would take one for the other. If plugins of this
// node assign an address twice, it was returned to them in between. checkUnused returns
// etcd's revision when the address was free.
func (s *Store) checkUnused(ctx context.Context, address netip.Addr, where place) (int64, error) {
	for deadline := time.Now().Add(goneLimit); ; {
		known, err := s.list(ctx, networksKey)
		if err != nil {
			return 0, err
		}
		if err = known.checkUnused(address, where); err == nil {
			return known.revision, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return 0, err
		}
		time.Sleep(goneLimit / 15)
	}
}

// checkUnusedSince repeats the check for all changes since a revision.
func (s *Store) checkUnusedSince(ctx context.Context, address netip.Addr, where place, revision int64) error {
	got, err := s.client.Get(ctx, networksKey, clientv3.WithPrefix(), clientv3.WithMinModRev(revision+1))
	if err != nil {
		return err
	}
	known := listing{at: map[place]netip.Addr{}}
	for _, kv := range got.Kvs {
		if there, found := placeOf(string(kv.Key)); found {
			if known.at[there], err = netip.ParseAddr(string(kv.Value)); err != nil {
				return fmt.Errorf("read address of %s in etcd: %w", there.id, err)
			}
		}
	}
	return known.checkUnused(address, where)
}

func (l listing) checkUnused(address netip.Addr, where place) error {
	for there, theirs := range l.at {
		if theirs == address && there.node != where.node {
			return fmt.Errorf("%s on %s has it: have the ipam of 'cni.list' give each node its own addresses", there.id, there.node)
		}
	}
	return nil
}
