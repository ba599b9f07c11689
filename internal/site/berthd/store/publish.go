package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/siteconf"
)

// Publish announces to all nodes which address plugins gave to the pod of an
// allocation on a node. Each node writes only its own key.
func (s *Store) Publish(ctx context.Context, a siteconf.Allocation, node string) error {
	pod, _ := a.On(node)
	fail := func(err error) error { return fmt.Errorf("register address %s of %s: %w", pod.Address, a.ID(), err) }
	where := PartOf(a, node)
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
		return fail(errors.Join(err, s.Withdraw(ctx, a, node)))
	}
	return nil
}

// Withdraw undoes Publish.
func (s *Store) Withdraw(ctx context.Context, a siteconf.Allocation, node string) error {
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
func (s *Store) checkUnused(ctx context.Context, address netip.Addr, where Part) (int64, error) {
	for deadline := time.Now().Add(goneLimit); ; {
		known, err := s.List(ctx, "")
		if err != nil {
			return 0, err
		}
		if err = known.checkUnused(address, where); err == nil {
			return known.Revision, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return 0, err
		}
		time.Sleep(goneLimit / 15)
	}
}

// checkUnusedSince repeats the check for all changes since a revision.
func (s *Store) checkUnusedSince(ctx context.Context, address netip.Addr, where Part, revision int64) error {
	got, err := s.client.Get(ctx, networksKey, clientv3.WithPrefix(), clientv3.WithMinModRev(revision+1))
	if err != nil {
		return err
	}
	known := Listing{At: map[Part]netip.Addr{}}
	for _, kv := range got.Kvs {
		if there, found := parseAtKey(string(kv.Key)); found {
			if known.At[there], err = decodeAddress(there, kv.Value); err != nil {
				return err
			}
		}
	}
	return known.checkUnused(address, where)
}

func (l Listing) checkUnused(address netip.Addr, where Part) error {
	for there, theirs := range l.At {
		if theirs == address && there.Node != where.Node {
			return fmt.Errorf("%s on %s has it: have the ipam of 'cni.list' give each node its own addresses", there.ID, there.Node)
		}
	}
	return nil
}
