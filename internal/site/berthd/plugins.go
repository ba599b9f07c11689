package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/podcni"
	"berth.dev/berth/internal/site/siteconf"
)

// plugins has CNI plugins connect the pods of this node, and publishes the addresses that they
// give. Without CNI it does nothing.
type plugins struct {
	// cni calls the plugins, or is nil.
	cni *podcni.Network
	// addresses has all addresses of pods.
	addresses netip.Prefix
	pods      *pods
	store     *store.Store
	metrics   *metrics
	log       *slog.Logger
	// relist makes followers list everything again.
	relist func()
	// finished is signalled when plugins have finished with a pod. Its lock is the mutex of
	// pods.
	finished *sync.Cond
}

// publish writes to etcd the address that plugins gave to a pod here, or removes it
// if the pod no longer has one. It does nothing if etcd is up to date.
func (p *plugins) publish(ctx context.Context, id string) error {
	p.pods.mu.Lock()
	local := p.pods.local[id]
	if p.cni == nil || local == nil || local.published == local.address || !local.ready && !local.lost() {
		p.pods.mu.Unlock()
		return nil
	}
	address, a := local.address, local.here(p.pods.node)
	p.pods.mu.Unlock()
	write := p.store.Publish
	if !address.IsValid() {
		write = p.store.Withdraw
	}
	if err := write(ctx, a, p.pods.node); err != nil {
		return err
	}
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	local.published = address
	return nil
}

// lost reports whether plugins have been called for the pod and it has no address.
func (l *localPod) lost() bool { return !l.loaded && !l.address.IsValid() }

// unpublished returns the IDs of allocations here whose address etcd lacks, or holds under
// this node's previous lease.
func (p *plugins) unpublished(mine []siteconf.Allocation, known store.Listing) []string {
	if p.cni == nil {
		return nil
	}
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	var all []string
	for _, a := range mine {
		local := p.pods.local[a.ID()]
		if local == nil || local.After != a.After {
			continue
		}
		local.published = known.At[store.PartOf(a, p.pods.node)]
		if a.Login != "" {
			local.published = netip.Addr{}
		}
		if local.published != local.address {
			all = append(all, a.ID())
		}
	}
	return all
}

// publishAll publishes addresses of pods here. A failure affects only that pod. It is tried
// again with the next listing of all pods, or with the next step of the job.
func (p *plugins) publishAll(ctx context.Context, ids []string) {
	for _, id := range ids {
		if err := p.publish(ctx, id); err != nil && ctx.Err() == nil {
			p.metrics.fail()
			p.log.Error("nobody learns of a pod's address", "job", id, "error", err)
		}
	}
}

// again makes plugins try once more to connect a pod, because a step needs it.
func (p *plugins) again(id string) {
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	if local := p.pods.local[id]; local != nil {
		local.again = local.problem != nil
	}
}

func (p *plugins) isPending(id string) bool {
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	local := p.pods.local[id]
	return local != nil && local.pending
}

// settled waits until plugins have an outcome for a pod. Only callers that need that
// pod wait.
func (p *plugins) settled(ctx context.Context, id string) error {
	// The waiter is woken by the goroutine that runs plugins, or when the context
	// ends.
	defer context.AfterFunc(ctx, p.wake)()
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	for ctx.Err() == nil {
		if local := p.pods.local[id]; local == nil || !local.pending {
			return nil
		}
		p.finished.Wait()
	}
	return fmt.Errorf("connect %s by CNI: the plugins have not ended in time", id)
}

func (p *plugins) anyPending() bool {
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	for _, local := range p.pods.local {
		if local.pending {
			return true
		}
	}
	return false
}

func (p *plugins) wake() {
	p.pods.mu.Lock()
	defer p.pods.mu.Unlock()
	p.finished.Broadcast()
}

// connect has plugins connect the pods of this node, and returns the IDs of the pods that
// they have connected. A failure affects only that pod.
func (p *plugins) connect(ctx context.Context, check bool) ([]string, error) {
	p.pods.mu.Lock()
	var pods []podcni.Pod
	ids := map[string]string{}
	for id, local := range p.pods.local {
		pod := podcni.Pod{
			ID: fmt.Sprintf("%s-%d", id, local.After), Namespace: p.pods.namespace(id),
			Owner: podcni.Owner{User: local.User, UID: local.UID, Job: local.Job, Network: local.VNI},
			Again: local.again,
		}
		local.again = false
		ids[pod.ID] = id
		pods = append(pods, pod)
	}
	p.pods.mu.Unlock()
	outcomes, err := p.cni.Apply(ctx, pods, check)
	if outcomes == nil && err != nil {
		return nil, err
	}
	if err != nil {
		// The next call tries again. Other jobs are not affected.
		p.metrics.fail()
		p.log.Error("CNI plugins have not undone what they did", "error", err)
	}
	var connected []string
	news := false
	p.pods.mu.Lock()
	for pod, outcome := range outcomes {
		local := p.pods.local[ids[pod]]
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
		if outcome.Err == nil && !p.addresses.Contains(outcome.Address) {
			local.problem = fmt.Errorf("connect %s by CNI: %s is not within pods %s: correct 'pods' or the ipam of 'cni.list'", pod, outcome.Address, p.addresses)
		}
		if local.problem != nil {
			if outcome.Gone {
				// Another pod may get the address soon.
				local.ready, local.loaded, local.address = false, false, netip.Addr{}
				news = news || local.published.IsValid()
			}
			p.metrics.fail()
			p.log.Error("connect a pod", "job", ids[pod], "error", local.problem)
			continue
		}
		if local.address = outcome.Address; local.loaded && !outcome.Changed {
			// After a restart of berthd, steps need not wait for etcd. If etcd does
			// not know the address, it is written now.
			local.published, news = local.address, true
		}
		local.loaded = false
		connected = append(connected, ids[pod])
		// The address of a new pod is published by the step that created it.
		news = news || local.published != local.address && (outcome.Checked || local.published.IsValid())
	}
	p.pods.mu.Unlock()
	p.wake()
	if news {
		// The followers of these networks publish the addresses.
		p.relist()
	}
	return connected, nil
}
