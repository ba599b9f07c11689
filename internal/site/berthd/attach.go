package berthd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

const (
	// attachTimeout bounds how long a step waits for etcd to allocate.
	attachTimeout = 15 * time.Second
	// refuseLimit bounds the time for recording in etcd that a job gets no network. attachTimeout,
	// store.LeaveLimit and refuseLimit together must be shorter than the plugin's ANSWER_LIMIT
	// (spank/client.c), or the plugin cannot report a reason.
	refuseLimit = 2 * time.Second
	// defaultLastWords leaves time for three retransmissions: Linux retransmits a lost packet after
	// 0.2 s, and doubles that interval each time.
	defaultLastWords = 2 * time.Second
)

// attach returns a job's pod on this node, and makes it if there is none. The request of the
// job's first node has the list of nodes, and allocates the job's addresses. The other nodes wait
// for that up to limit, as berthd of the first node may be restarting.
func (d *daemon) attach(ctx context.Context, request store.Request, limit time.Duration) (siteconf.Pod, error) {
	if pod, ready := d.pods.attached(request); ready {
		return pod, nil
	}
	cause := fmt.Errorf("it has none after %s", limit)
	if len(request.Nodes) > 0 {
		limit, cause = attachTimeout, fmt.Errorf("etcd has not answered within %s", attachTimeout)
	}
	limited, cancel := context.WithTimeoutCause(ctx, limit, cause)
	defer cancel()
	pod, err := d.attachWithin(limited, request)
	if err != nil {
		d.metrics.refuse()
		d.audit.write(auditRefused, request.Allocation(), err)
		if !errors.As(err, new(*tooLarge)) {
			err = &noNetwork{error: err, ill: d.service.probe() != nil}
		}
	}
	return pod, err
}

// noNetwork is the error of a job that might get a network later or on other nodes. The plugin
// puts a batch job back into the queue.
type noNetwork struct {
	error
	// ill reports whether this node gives no job a network.
	ill bool
}

func (n *noNetwork) Unwrap() error { return n.error }

// tooLarge is the error of a job that never gets a network.
type tooLarge struct{ error }

func (d *daemon) attachWithin(ctx context.Context, request store.Request) (siteconf.Pod, error) {
	began := time.Now()
	request.Group = d.config.GroupOf(request.User)
	owner := request.Allocation().Owner()
	user := d.watch.follow(owner)
	defer d.watch.unfollow(owner)
	if len(request.Nodes) > 0 {
		a, err := d.store.Allocate(ctx, request)
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w: %w", err, context.Cause(ctx))
			}
			if errors.Is(err, store.ErrTooLarge) {
				err = &tooLarge{err}
			}
			return siteconf.Pod{}, d.refuse(ctx, user, request, err)
		}
		user.put(a)
	}
	id := request.Allocation().ID()
	a, err := user.await(ctx, id, d.node)
	if err != nil {
		return siteconf.Pod{}, err
	}
	made, err := d.add(ctx, a)
	if err != nil {
		return siteconf.Pod{}, err
	}
	d.network.plugins.again(id)
	if err := d.network.apply(ctx, false); err != nil {
		return siteconf.Pod{}, err
	}
	if err := d.network.settle(ctx, id); err != nil {
		return siteconf.Pod{}, err
	}
	// Publish even if another step made the pod: it may not have published it yet.
	if err := d.network.plugins.publish(ctx, id); err != nil {
		return siteconf.Pod{}, err
	}
	pod, ready, _ := d.pods.connected(request)
	if !ready {
		return siteconf.Pod{}, d.pods.problem(id)
	}
	if !made {
		return pod, nil
	}
	a = a.With(d.node, pod.Address)
	d.metrics.attached(time.Since(began))
	d.audit.write(auditJoined, a, nil)
	d.log.Info("job has a network", "job", id, "user", a.User, "uid", a.UID, "address", pod.Address, "network", a.VNI, "took", time.Since(began))
	return pod, nil
}

// refuse records why a job gets no network, for its later steps and its other nodes.
func (d *daemon) refuse(ctx context.Context, user *follower, request store.Request, why error) error {
	if request.Login != "" {
		// No other node waits, and the next session may succeed.
		return why
	}
	refused := request.Allocation()
	refused.Problem, refused.Final = why.Error(), errors.As(why, new(*tooLarge))
	user.put(refused)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), refuseLimit)
	defer cancel()
	if err := d.store.Refuse(ctx, refused); err != nil {
		d.log.Warn("refuse", "error", err)
	}
	return why
}

// add makes the namespaces and then records the pod. In this order, the next start removes a
// namespace whose pod was not recorded. It reports whether it made the pod, as several steps
// or sessions may ask at the same time.
func (d *daemon) add(ctx context.Context, a siteconf.Allocation) (bool, error) {
	d.network.applying.Lock()
	defer d.network.applying.Unlock()
	d.pods.mu.Lock()
	former := d.pods.local[a.ID()]
	d.pods.mu.Unlock()
	if former != nil && former.UID != a.UID {
		// A job's epilog was lost, and another user's job has its number. Nobody may enter the
		// former job's namespaces.
		if err := d.dislodge(ctx, former); err != nil {
			return false, err
		}
		former = nil
	}
	if former != nil && former.After == a.After {
		return false, nil
	}
	if err := d.pods.make(ctx, a); err != nil {
		if former == nil {
			err = errors.Join(err, d.pods.unmake(a.ID()))
		}
		return false, err
	}
	d.pods.mu.Lock()
	defer d.pods.mu.Unlock()
	d.pods.put(&localPod{Allocation: a})
	return true, nil
}

// dislodge removes a pod whose identifier now belongs to another user's pod. Its interface
// disappears with the namespace, or when the new pod is connected.
func (d *daemon) dislodge(ctx context.Context, former *localPod) error {
	id := former.ID()
	err := d.pods.unmake(id)
	if err == nil {
		d.pods.take(id)
		d.leave(ctx, former.Allocation)
	}
	d.audit.write(auditLeft, former.here(d.node), nil)
	d.log.Warn("a job's number is another user's: what was left of the former one is removed", "job", id, "user", former.User, "uid", former.UID, "error", err)
	return err
}

// release removes a job's pod from this node and from etcd. If etcd does not answer, the
// collector frees the addresses later: a job's end never fails because of its network.
//
// slurmstepd has just closed its connections to srun. If the last packet is lost and the
// interface is then removed, srun waits a minute for the packet.
func (d *daemon) release(ctx context.Context, id string) error {
	if d.pods.has(id) {
		bounded, cancel := context.WithTimeoutCause(ctx, d.lastWords, fmt.Errorf("data was not acknowledged within %s", d.lastWords))
		err := vxlan.AwaitSent(bounded, d.pods.namespace(id))
		cancel()
		if err != nil {
			d.log.Debug("the end of the job's connections", "job", id, "error", err)
		}
	}
	a, err := d.drop(ctx, id)
	if err != nil || a == nil {
		return err
	}
	d.leave(ctx, *a)
	return nil
}

// leave records in etcd, in the background, that a pod has left this node.
func (d *daemon) leave(ctx context.Context, a siteconf.Allocation) {
	d.background.Go(func() {
		ctx, cancel := store.Limited(context.WithoutCancel(ctx))
		defer cancel()
		if err := d.store.Leave(ctx, a, d.node); err != nil {
			d.log.Warn("addresses are left to the collector", "job", a.ID(), "error", err)
		}
	})
}

// drop removes a pod from this node, but not from etcd.
func (d *daemon) drop(ctx context.Context, id string) (*siteconf.Allocation, error) {
	local := d.pods.take(id)
	if local == nil {
		return nil, nil
	}
	// End its processes first, so that the peers of their connections learn of the end.
	err := errors.Join(d.pods.forget(id), d.pods.processes.End(id), d.network.apply(ctx, false), d.pods.unmake(id))
	d.audit.write(auditLeft, local.here(d.node), nil)
	d.log.Info("job has left its network", "job", id, "user", local.User, "uid", local.UID, "network", local.VNI, "error", err)
	return &local.Allocation, err
}
