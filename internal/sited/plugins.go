package sited

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/cni"
	"berth.dev/berth/internal/site"
)

// place is where CNI plugins have given an address: to which pod of which allocation.
type place struct {
	id    string
	after int64
	node  string
}

// placeOf reads the key of such an address. It goes by the position of what is between
// slashes, as a group may have any of the names there.
func placeOf(key string) (place, bool) {
	rest, found := strings.CutPrefix(key, networksKey)
	parts := strings.Split(rest, "/")
	if !found || len(parts) != 5 || parts[1] != at {
		return place{}, false
	}
	after, err := strconv.ParseInt(parts[3], 10, 64)
	return place{parts[2], after, parts[4]}, err == nil
}

func atKey(a site.Allocation, node string) string {
	return fmt.Sprintf("%s%d/%s", atPrefix(a), a.After, node)
}

// Publish tells all nodes which address plugins have given to the pod of an
// allocation on one. Each node writes a key of its own.
func (s *Store) Publish(ctx context.Context, a site.Allocation, node string) error {
	pod, _ := a.On(node)
	fail := func(err error) error { return fmt.Errorf("tell of address %s of %s: %w", pod.Address, a.ID(), err) }
	if err := s.alone(ctx, pod.Address, place{a.ID(), a.After, node}); err != nil {
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
	return nil
}

// goneLimit is how long etcd may need to hear that an address was given back.
const goneLimit = 3 * time.Second

// alone says whether an address is that of another pod on another node: names would
// lead to both, and be told to both. What plugins of this node have given twice, they
// have been given back.
func (s *Store) alone(ctx context.Context, address netip.Addr, where place) error {
	for deadline := time.Now().Add(goneLimit); ; {
		known, err := s.list(ctx, networksKey)
		if err != nil {
			return err
		}
		var other *place
		for there, theirs := range known.at {
			if theirs == address && there.node != where.node {
				other = &there
			}
		}
		if other == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("%s on %s has it: have the ipam of 'cni.list' give each node addresses of its own", other.id, other.node)
		}
		time.Sleep(goneLimit / 15)
	}
}

// tell etcd the address of an allocation's pod here, if it does not know it, or knows
// it by the lease of before.
func (d *Daemon) tell(ctx context.Context, a site.Allocation, known listing) error {
	d.mu.Lock()
	local := d.local[a.ID()]
	var address netip.Addr
	if local != nil && local.ready {
		address = local.address
	}
	d.mu.Unlock()
	if !address.IsValid() || known.at[place{a.ID(), a.After, d.node}] == address && a.Login == "" {
		return nil
	}
	known.at[place{a.ID(), a.After, d.node}] = address
	return d.store.Publish(ctx, with(a, d.node, address), d.node)
}

// connect has plugins connect the pods of this node, and returns the IDs of those that
// they have. What fails is the matter of the pod with which it does.
func (d *Daemon) connect(ctx context.Context, check bool) ([]string, error) {
	d.mu.Lock()
	var pods []cni.Pod
	ids := map[string]string{}
	for id, local := range d.local {
		pod := cni.Pod{
			ID: fmt.Sprintf("%s-%d", id, local.After), Namespace: d.network(id),
			Owner: cni.Owner{User: local.User, UID: local.UID, Job: local.Job, Network: local.VNI},
		}
		ids[pod.ID] = id
		pods = append(pods, pod)
	}
	d.mu.Unlock()
	outcomes, err := d.cni.Apply(ctx, pods, check)
	if outcomes == nil && err != nil {
		return nil, err
	}
	if err != nil {
		// It is tried again, and no other job's matter.
		d.metrics.fail()
		d.log.Error("CNI plugins have not undone what they did", "error", err)
	}
	var connected []string
	changed := false
	d.mu.Lock()
	for pod, outcome := range outcomes {
		local := d.local[ids[pod]]
		if local == nil {
			continue
		}
		local.problem = outcome.Err
		if outcome.Err == nil && !d.config.Pods.Contains(outcome.Address) {
			local.problem = fmt.Errorf("connect %s by CNI: %s is not within pods %s: correct 'pods' or the ipam of 'cni.list'", pod, outcome.Address, d.config.Pods)
		}
		if local.problem != nil {
			local.ready = local.ready && !outcome.Gone
			d.metrics.fail()
			d.log.Error("connect a pod", "job", ids[pod], "error", local.problem)
			continue
		}
		changed = changed || local.ready && local.address != outcome.Address
		local.address = outcome.Address
		connected = append(connected, ids[pod])
	}
	d.mu.Unlock()
	if changed {
		// Whoever follows these networks writes it.
		d.relist()
	}
	return connected, nil
}
