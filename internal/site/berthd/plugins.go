package berthd

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/podcni"
	"berth.dev/berth/internal/site/siteconf"
)

// place identifies the pod of an allocation on a node that CNI plugins gave an
// address.
type place struct {
	id    string
	after int64
	node  string
}

// placeOf parses the key of such an address.
func placeOf(key string) (place, bool) {
	id, after, node, found := besideOf(key, at)
	return place{id, after, node}, found
}

func atKey(a siteconf.Allocation, node string) string {
	return fmt.Sprintf("%s%d/%s", atPrefix(a), a.After, node)
}

// Publish tells all nodes which address plugins gave to the pod of an allocation on a
// node. Each node writes only its own key.
func (s *Store) Publish(ctx context.Context, a siteconf.Allocation, node string) error {
	pod, _ := a.On(node)
	fail := func(err error) error { return fmt.Errorf("register address %s of %s: %w", pod.Address, a.ID(), err) }
	where := place{a.ID(), a.After, node}
	seen, err := s.alone(ctx, pod.Address, where)
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
	if err := s.aloneSince(ctx, pod.Address, where, seen); err != nil {
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

// alone returns an error if a pod on another node has the address. Names would lead
// to both pods, and the name server would take one for the other. If plugins of this
// node assign an address twice, it was returned to them in between. alone returns
// etcd's revision when the address was free.
func (s *Store) alone(ctx context.Context, address netip.Addr, where place) (int64, error) {
	for deadline := time.Now().Add(goneLimit); ; {
		known, err := s.list(ctx, networksKey)
		if err != nil {
			return 0, err
		}
		if err = known.alone(address, where); err == nil {
			return known.revision, nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return 0, err
		}
		time.Sleep(goneLimit / 15)
	}
}

// aloneSince repeats the check for all changes since a revision.
func (s *Store) aloneSince(ctx context.Context, address netip.Addr, where place, revision int64) error {
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
	return known.alone(address, where)
}

func (l listing) alone(address netip.Addr, where place) error {
	for there, theirs := range l.at {
		if theirs == address && there.node != where.node {
			return fmt.Errorf("%s on %s has it: have the ipam of 'cni.list' give each node its own addresses", there.id, there.node)
		}
	}
	return nil
}

// publish writes to etcd the address that plugins gave to a pod here, or removes it
// if the pod no longer has one. It does nothing if etcd is up to date.
func (d *Daemon) publish(ctx context.Context, id string) error {
	d.mu.Lock()
	local := d.local[id]
	if d.cni == nil || local == nil || local.told == local.address || !local.ready && !local.lost() {
		d.mu.Unlock()
		return nil
	}
	address, a := local.address, local.here(d.node)
	d.mu.Unlock()
	tell := d.store.Publish
	if !address.IsValid() {
		tell = d.store.withdraw
	}
	if err := tell(ctx, a, d.node); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	local.told = address
	return nil
}

// lost reports whether plugins had connected the pod and failed to connect it again.
func (l *localPod) lost() bool { return !l.loaded && !l.address.IsValid() }

// untold returns the IDs of allocations here whose address etcd lacks, or holds under
// this node's previous lease.
func (d *Daemon) untold(mine []siteconf.Allocation, known listing) []string {
	if d.cni == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []string
	for _, a := range mine {
		local := d.local[a.ID()]
		if local == nil || local.After != a.After {
			continue
		}
		local.told = known.at[place{a.ID(), a.After, d.node}]
		if a.Login != "" {
			local.told = netip.Addr{}
		}
		if local.told != local.address {
			all = append(all, a.ID())
		}
	}
	return all
}

// tell publishes addresses of pods here. A failure affects only that pod. It is tried
// again with the next listing of all pods, or with the next step of the job.
func (d *Daemon) tell(ctx context.Context, untold []string) {
	for _, id := range untold {
		if err := d.publish(ctx, id); err != nil && ctx.Err() == nil {
			d.metrics.fail()
			d.log.Error("nobody learns of a pod's address", "job", id, "error", err)
		}
	}
}

// again makes plugins try once more to connect a pod, because a step needs it.
func (d *Daemon) again(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if local := d.local[id]; local != nil {
		local.again = local.problem != nil
	}
}

// settle waits until plugins have finished with a pod.
func (d *Daemon) settle(ctx context.Context, id string) error {
	for d.cni != nil {
		if err := d.settled(ctx, id); err != nil {
			return err
		}
		// The goroutine that collected the outcome may not have configured names yet,
		// or may have failed to. This step must learn of that too.
		if err := d.apply(ctx, false); err != nil {
			return err
		}
		if !d.isPending(id) {
			break
		}
	}
	return nil
}

func (d *Daemon) isPending(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	local := d.local[id]
	return local != nil && local.pending
}

// settled waits until plugins have an outcome for a pod. Only callers that need that
// pod wait.
func (d *Daemon) settled(ctx context.Context, id string) error {
	// The waiter is woken by the goroutine that runs plugins, or when the context
	// ends.
	defer context.AfterFunc(ctx, d.wake)()
	d.mu.Lock()
	defer d.mu.Unlock()
	for ctx.Err() == nil {
		if local := d.local[id]; local == nil || !local.pending {
			return nil
		}
		d.heard.Wait()
	}
	return fmt.Errorf("connect %s by CNI: the plugins have not ended in time", id)
}

// startPatience bounds the time that a new daemon waits for plugins before it accepts
// requests. After that, steps of running jobs need no request to etcd.
const startPatience = 2 * time.Second

// firstSettled waits for the plugins of all pods at start, when no other goroutine
// calls them yet. It does not wait for plugins that hang.
func (d *Daemon) firstSettled(ctx context.Context) error {
	enough := time.NewTimer(startPatience)
	defer enough.Stop()
	defer d.touch()
	for d.anyPending() {
		select {
		case <-d.dirty:
			if err := d.apply(ctx, false); err != nil {
				return err
			}
		case <-enough.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func (d *Daemon) anyPending() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, local := range d.local {
		if local.pending {
			return true
		}
	}
	return false
}

func (d *Daemon) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.heard.Broadcast()
}

// connect has plugins connect the pods of this node, and returns the IDs of the
// connected ones. A failure affects only that pod.
func (d *Daemon) connect(ctx context.Context, check bool) ([]string, error) {
	d.mu.Lock()
	var pods []podcni.Pod
	ids := map[string]string{}
	for id, local := range d.local {
		pod := podcni.Pod{
			ID: fmt.Sprintf("%s-%d", id, local.After), Namespace: d.network(id),
			Owner: podcni.Owner{User: local.User, UID: local.UID, Job: local.Job, Network: local.VNI},
			Again: local.again,
		}
		local.again = false
		ids[pod.ID] = id
		pods = append(pods, pod)
	}
	d.mu.Unlock()
	outcomes, err := d.cni.Apply(ctx, pods, check)
	if outcomes == nil && err != nil {
		return nil, err
	}
	if err != nil {
		// It is tried again, and does not affect other jobs.
		d.metrics.fail()
		d.log.Error("CNI plugins have not undone what they did", "error", err)
	}
	var connected []string
	news := false
	d.mu.Lock()
	for pod, outcome := range outcomes {
		local := d.local[ids[pod]]
		if local == nil {
			continue
		}
		if local.pending = outcome.Pending; outcome.Pending {
			// Until then the pod keeps what it has.
			continue
		}
		if outcome.Err != nil && errors.Is(outcome.Err, local.failed) {
			// The same failure as the last time.
			continue
		}
		local.failed, local.problem = outcome.Err, outcome.Err
		if outcome.Err == nil && !d.config.Pods.Contains(outcome.Address) {
			local.problem = fmt.Errorf("connect %s by CNI: %s is not within pods %s: correct 'pods' or the ipam of 'cni.list'", pod, outcome.Address, d.config.Pods)
		}
		if local.problem != nil {
			if outcome.Gone {
				// Another pod may get the address soon.
				local.ready, local.loaded, local.address = false, false, netip.Addr{}
				news = news || local.told.IsValid()
			}
			d.metrics.fail()
			d.log.Error("connect a pod", "job", ids[pod], "error", local.problem)
			continue
		}
		if local.address = outcome.Address; local.loaded && !outcome.Changed {
			// After a restart of berthd, steps need not wait for etcd. If etcd does
			// not know the address, it is written now.
			local.told, news = local.address, true
		}
		local.loaded = false
		connected = append(connected, ids[pod])
		// The address of a new pod is published by the step that created it.
		news = news || local.told != local.address && (outcome.Checked || local.told.IsValid())
	}
	d.mu.Unlock()
	d.wake()
	if news {
		// The follower of these networks writes it.
		d.relist()
	}
	return connected, nil
}
