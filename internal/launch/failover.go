package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/kube/lease"
	"berth.dev/berth/internal/kube/nodeloss"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/members"
)

// canFailOver reports whether another node could lead this run. A run with a
// command has no successor, since the command runs only on the head.
func (r *run) canFailOver() bool {
	return r.plan.Replicated() && len(r.Spec.Command) == 0 && !r.Spec.FailFast
}

// acquireLease stores what a successor needs, and acquires and renews the leader
// lease.
func (r *run) acquireLease(ctx context.Context) error {
	if err := r.work.client.Remember(ctx, r.work.objects); err != nil {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	r.lease = lease.New(r.work.client.Dynamic(), r.plan.Node.Name)
	if err := r.lease.Acquire(ctx); err != nil {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	r.work.progress = &workload.Progress{}
	// Not ctx, which a signal ends: another node would lead the run while this one gives
	// the workload time to end.
	renewal, end := context.WithCancel(context.WithoutCancel(ctx))
	r.endRenewal = end
	go r.renewLease(renewal)
	return nil
}

// stopRenewal ends the renewal of the lease, if it has begun.
func (r *run) stopRenewal() {
	if r.endRenewal != nil {
		r.endRenewal()
	}
}

// monitorConfig returns the configuration for the monitor of the other nodes.
// signalled ends with the signal that ends the run.
func (r *run) monitorConfig(signalled context.Context, giveUp context.CancelCauseFunc) members.MonitorConfig {
	config := members.MonitorConfig{
		Reporter: nodeloss.NewReporter(r.work.client.Dynamic()), FailFast: r.Spec.FailFast, GiveUp: giveUp,
		Ending: func() bool { return signalled.Err() != nil },
	}
	if r.plan.Replicated() {
		for _, member := range r.plan.Replicas() {
			config.Replicas = append(config.Replicas, member.Name)
		}
	}
	return config
}

// renewLease renews the lease. It ends the run on this node if it loses the
// lease, since another node may lead the run then.
func (r *run) renewLease(ctx context.Context) {
	if err := r.lease.Renew(ctx, r.work.progress.String); err != nil {
		r.lostLease.Store(true)
		r.supervisor.GiveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("node %s ends: %w; the run goes on where two control planes reach each other", r.plan.Node.Name, err)))
	}
}

// errLeads is the reason why a node stops following a head.
var errLeads = errors.New("this node leads the run now")

// takeOver waits until this node must lead the run, leads it until its end, and returns
// the workload's exit code. A signal ends signalled at once, and ctx only later. takeOver
// calls begin when this node becomes the leader.
func (r *run) takeOver(ctx, signalled context.Context, begin func(), giveUp context.CancelCauseFunc) (int, error) {
	if err := r.work.connect(r.members.Own()); err != nil {
		return 0, err
	}
	r.lease = lease.New(r.work.client.Dynamic(), r.plan.Node.Name)
	previous, progress, err := r.lease.AwaitExpiry(ctx)
	if err != nil {
		return 0, err
	}
	begin()
	r.work.progress = workload.ReadProgress(progress)
	go r.renewLease(ctx)
	r.Log.Warn(fmt.Sprintf("node %s, which led the run, is lost; node %s leads it now", previous, r.plan.Node.Name))
	signalled, requestEnd := context.WithCancelCause(signalled)
	defer requestEnd(nil)
	config := r.monitorConfig(signalled, giveUp)
	r.awaitList(&config)
	if r.monitor, err = r.members.BecomeHead(ctx, r.plan, previous, config); err != nil {
		return 0, err
	}
	if r.work.objects, err = r.work.client.Remembered(ctx); err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, err)
	}
	if r.allocation != nil {
		go r.allocation.Inquire(ctx, giveUp)
	}
	if err := r.listenForDown(ctx, requestEnd); err != nil {
		return 0, err
	}
	if err := r.serveSlurmJobs(); err != nil {
		return 0, err
	}
	code, err := r.runWorkload(signalled, ctx)
	r.awaitNodes(ctx, signalled)
	return code, err
}

// awaitList makes reports of lost nodes wait until the follower has listed all pods. A cluster
// that stays has no follower, and pods of other runs must not come to a lost node meanwhile.
func (r *run) awaitList(config *members.MonitorConfig) {
	if !r.Spec.Stay {
		config.Reporter, r.work.listed = reportOnceListed(config.Reporter)
	}
}

// listLimit bounds the time that the report of a lost node waits for the first list of the
// pods.
const listLimit = 10 * time.Second

// onceListed reports lost nodes to a Reporter when listed is closed.
type onceListed struct {
	members.Reporter
	listed <-chan struct{}
}

// reportOnceListed returns a Reporter that takes no node out of service before the returned
// function was called, or listLimit is over. The report of a lost node deletes its pods. The
// previous head may have passed on output of them that it could not record any more, and a
// follower that has never seen such a pod would not notice that the rest is lost.
func reportOnceListed(reporter members.Reporter) (members.Reporter, func()) {
	listed := make(chan struct{})
	return onceListed{reporter, listed}, sync.OnceFunc(func() { close(listed) })
}

func (o onceListed) Lose(ctx context.Context, node, reason string) error {
	select {
	case <-o.listed:
	case <-time.After(listLimit):
	case <-ctx.Done():
	}
	return o.Reporter.Lose(ctx, node, reason)
}

// awaitNodes waits until the other nodes have found this new head or are lost. The
// workload may have ended before this node became the head, and a node that finds no
// head looks for one for a minute.
func (r *run) awaitNodes(ctx, signalled context.Context) {
	waiting, stop := context.WithCancel(signalled)
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	_ = r.monitor.AwaitExpected(waiting) // the reason of the end is known
}
