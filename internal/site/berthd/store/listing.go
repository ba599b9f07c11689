package store

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

// Part identifies the pod of an allocation on a node. Without a node it is the whole allocation.
type Part struct {
	ID    string
	After int64
	Node  string
}

// PartOf returns the part of an allocation on a node, or without a node the whole.
func PartOf(a siteconf.Allocation, node string) Part { return Part{a.ID(), a.After, node} }

// GivenNames holds names as they are in etcd. A part with a node has the names of services of
// runs there. A part without has the names that the user gave to the whole job.
type GivenNames struct {
	// Names is nil if etcd has none, and empty if the user has removed them.
	Names []string
	// Revision is the revision of etcd at their last change.
	Revision int64
}

// namesValue is the value of a key of names.
type namesValue struct {
	// Login is for a berthd without support for names. It takes every key below networks/ for
	// an allocation, and ignores this one as sessions on another host, without pods.
	Login string   `json:"login"`
	Names []string `json:"names"`
}

// Listing holds everything found in a network, or in all networks.
type Listing struct {
	// Jobs holds the allocations by ID.
	Jobs map[string]siteconf.Allocation
	// At holds the addresses that CNI plugins have given.
	At    map[Part]netip.Addr
	Names map[Part]GivenNames
	// Revision is etcd's revision when the listing was read.
	Revision int64
}

// List returns what etcd holds of the network of an owner, or without an owner of all networks.
func (s *Store) List(ctx context.Context, owner string) (Listing, error) {
	return s.list(ctx, networkPrefix(owner))
}

func (s *Store) list(ctx context.Context, prefix string) (Listing, error) {
	// Without a limit, a request to an unreachable etcd would never fail, and nobody
	// would learn about the outage.
	ctx, cancel := Limited(ctx)
	defer cancel()
	got, err := s.client.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return Listing{}, fmt.Errorf("ask etcd for pods (%s): %w", prefix, s.explain(errors.Join(err, context.Cause(ctx))))
	}
	known := Listing{Jobs: map[string]siteconf.Allocation{}, At: map[Part]netip.Addr{}, Names: map[Part]GivenNames{}, Revision: got.Header.Revision}
	for _, kv := range got.Kvs {
		c, _, err := parse(kv, false)
		switch {
		case err != nil:
			return Listing{}, err
		case c.Owner != nil:
			known.Names[*c.Owner] = c.Names
		case c.At != nil:
			known.At[*c.At] = c.Address
		case c.Allocation != nil:
			known.Jobs[c.Allocation.ID()] = *c.Allocation
		}
	}
	return known, nil
}

// Change is a change of an allocation, of an address or of names.
type Change struct {
	// ID is set if the change is of an allocation. If Allocation is nil, it is over.
	ID         string
	Allocation *siteconf.Allocation
	// At is set if the change is of an address. The address is removed if Address is
	// invalid.
	At      *Part
	Address netip.Addr
	// Owner is set if the change is of names.
	Owner *Part
	Names GivenNames
}

// Watch reports changes since a revision in the network of an owner, or in all networks. It
// returns when the context ends or the connection is lost.
func (s *Store) Watch(ctx context.Context, owner string, since int64, report func(Change)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := networkPrefix(owner)
	for events := range s.client.Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithRev(since+1)) {
		if err := events.Err(); err != nil {
			return fmt.Errorf("watch pods in etcd (%s): %w", prefix, err)
		}
		for _, event := range events.Events {
			c, known, err := parse(event.Kv, event.Type != clientv3.EventTypePut)
			if err != nil {
				return err
			}
			if known {
				report(c)
			}
		}
	}
	return fmt.Errorf("watch pods in etcd (%s): the connection is lost", prefix)
}

// parse reads a key and its value. It reports false for a key that another version of berthd may
// have written beside allocations.
func parse(kv *mvccpb.KeyValue, deleted bool) (c Change, known bool, err error) {
	key := string(kv.Key)
	names, isNames := parseNamesKey(key)
	at, isAt := parseAtKey(key)
	switch {
	case isNames:
		c.Owner, c.Names.Revision = &names, kv.ModRevision
		if !deleted {
			c.Names.Names, err = decodeNames(kv.Value)
		}
	case isAt:
		c.At = &at
		if !deleted {
			c.Address, err = decodeAddress(at, kv.Value)
		}
	case isPods(key):
		c.ID = path.Base(key)
		if !deleted {
			c.Allocation = new(siteconf.Allocation)
			*c.Allocation, err = decode(kv.Value)
		}
	default:
		return Change{}, false, nil
	}
	return c, true, err
}

func decodeNames(value []byte) ([]string, error) {
	var v namesValue
	if err := json.Unmarshal(value, &v); err != nil {
		return nil, fmt.Errorf("read names in etcd: %w", err)
	}
	return append([]string{}, v.Names...), nil
}

func decodeAddress(at Part, value []byte) (netip.Addr, error) {
	address, err := netip.ParseAddr(string(value))
	if err == nil {
		err = checkIPv4(address)
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("read address of %s in etcd: %w", at.ID, err)
	}
	return address, nil
}

func decode(value []byte) (siteconf.Allocation, error) {
	var a siteconf.Allocation
	if err := json.Unmarshal(value, &a); err != nil {
		return a, fmt.Errorf("read an allocation in etcd: %w", err)
	}
	for _, pod := range a.Pods {
		if err := errors.Join(checkIPv4(pod.Address), checkIPv4(pod.Via)); err != nil {
			return siteconf.Allocation{}, fmt.Errorf("read an allocation in etcd: pod of %s on %s: %w", a.ID(), pod.Node, err)
		}
	}
	return a, nil
}

// checkIPv4 rejects addresses other than IPv4, but accepts the zero address. Pods' interfaces
// are named after their IPv4 addresses.
func checkIPv4(address netip.Addr) error {
	if address.IsValid() && !address.Is4() {
		return fmt.Errorf("%s is not an IPv4 address", address)
	}
	return nil
}
