package launch

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/pulls"
)

// signalTimeout bounds how long this node stays for the head's workload after a signal. No
// pod has such a grace period. It does not serve to notice the loss of the head.
const signalTimeout = 7 * 24 * time.Hour

// takePart runs a node that is not the head. The node follows the head's plan until
// the head ends the run. If it leads the run in the end, takePart returns the
// workload's exit code.
func (r *run) takePart(ctx context.Context) (code int, err error) {
	// Slurm signals all nodes at once. The head asks the workload to end, and
	// needs its nodes meanwhile.
	var joined atomic.Bool
	signalled := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(signalled, func() {
		cause := context.Cause(signalled)
		if r.members.IsPilot() {
			if joined.Load() {
				r.leaveSeat(ctx, cause)
			}
			cancel(cause)
			return
		}
		var reason *allocation.Interrupted
		if !errors.As(cause, &reason) || !joined.Load() {
			cancel(cause)
			return
		}
		time.AfterFunc(signalTimeout, func() { cancel(cause) })
	})
	defer stop()
	staying, lead := context.WithCancelCause(ctx)
	defer lead(nil)
	added := make(chan struct{}) // closed when the supervisor has the roles
	// Comments in lead give the reasons for the order of the end.
	r.start.list = []step{
		{name: "host", do: r.inspectHost, stop: func() { r.localMembers.End() }},
		{name: "directories", do: r.makeDirectories, undo: func() error { return r.dirs.leave(r.box != nil) }},
		{name: "plan", do: r.join, stop: r.leaveMembers, undo: r.dropPlan},
		{name: "head", do: func(context.Context) error { joined.Store(true); go r.stay(staying, added, cancel); return nil }},
		{name: "ports", do: r.publish, stop: r.closePorts},
		{name: "sandbox", do: r.startSandbox, undo: r.closeSandbox},
		{name: "roles", do: func(ctx context.Context) error { defer close(added); return r.startRoles(ctx) }, stop: r.stopRoles},
		{name: "images", do: r.importImages},
		{name: "late node", do: r.startLateNode},
		{name: "ready", do: r.reportReady},
		{name: "run", do: func(ctx context.Context) error {
			if r.members.Own() == nil {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			code, err = r.takeOver(ctx, signalled, func() { lead(errLeads) }, cancel)
			return err
		}, stop: func() { r.control.Close() }},
	}
	if err := r.start.run(ctx, func(string) {}); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if r.members.IsPilot() { // the user reads the output of this job, not of the head's
			r.members.Leave(err.Error())
			return 0, r.resultOfPilot(err, joined.Load())
		}
		var closed *rendezvous.ClosedError
		if errors.Is(err, members.ErrFirstEnded) || errors.As(err, &closed) && !closed.Here {
			r.Log.Debug("ending: " + err.Error())
			return 0, nil // the head has reported the reason
		}
		if r.lostLease.Load() || !r.members.HasHead() {
			return 0, err
		}
		return r.members.Farewell(err)
	}
	return code, nil
}

// join connects to the head and receives this node's plan.
func (r *run) join(ctx context.Context) error {
	offer, err := r.offer()
	if err != nil {
		return err
	}
	answer, err := r.members.Join(ctx, offer, r.host.cpus.Count)
	if err != nil {
		return err
	}
	r.plan = answer.Plan
	r.archives, r.source = answer.Archives, answer.Source
	for _, a := range r.archives {
		// A folder that is mounted on access, as on CVMFS, must be mounted before
		// the sandbox starts. Missing archives are reported later.
		_ = a.Here()
	}
	r.identities.Nodes = append(r.identities.Nodes, answer.Files)
	r.pulls = pulls.Read(ctx, r.plan, r.Getenv)
	if answer.Own == nil {
		return nil
	}
	// Users who come from the login host reach the cluster here, too.
	own, err := pki.ReadKubeconfig(answer.Own)
	if err != nil {
		return err
	}
	r.identities.Kubeconfig, r.identities.Key, err = identity.UserKubeconfig(contextName(r.Spec, r.plan), own.Server, own.Authority, pki.Pair{Cert: own.Cert, Key: own.Key})
	if err != nil {
		return err
	}
	return errors.Join(r.dirs.writeKubeconfig(r.identities.Kubeconfig), r.recordControlNodes())
}

func (r *run) reportReady(ctx context.Context) error {
	if r.plan.Control() {
		if err := r.supervisor.Await(ctx, "control"); err != nil {
			return err
		}
	}
	if err := r.supervisor.Await(ctx, "node"); err != nil {
		return err
	}
	r.members.SetReady(ctx)
	return nil
}

// stay follows the head once this node has its plan. It ends the run when the
// head ends it or is gone. It imports images once added is closed.
func (r *run) stay(ctx context.Context, added <-chan struct{}, end context.CancelCauseFunc) {
	r.members.Moved = func(head string) {
		if err := r.dirs.noteHead(head); err != nil {
			r.Log.Warn(err.Error())
		}
	}
	do := importer(ctx, added, func(request members.ImportRequest) error {
		return r.importArchives(ctx, request.Archives, request.Source)
	})
	if err := r.members.Follow(ctx, r.plan.RunID, do); !errors.Is(context.Cause(ctx), errLeads) {
		end(err)
	}
}

// importer returns a function that answers requests of the head to import images. A node of
// another job may receive a request while it starts, so the function waits until added is
// closed.
func importer(ctx context.Context, added <-chan struct{}, do func(members.ImportRequest) error) func(members.ImportRequest, func(error)) {
	return func(request members.ImportRequest, answer func(error)) {
		go func() {
			select {
			case <-added:
				answer(do(request))
			case <-ctx.Done():
				answer(context.Cause(ctx))
			}
		}()
	}
}

// resultOfPilot returns the error that a node of another job reports at its end. joined is set
// if it had received its plan.
func (r *run) resultOfPilot(err error, joined bool) error {
	if joined && members.EndsInOrder(err) {
		r.Log.Debug("ending: " + err.Error())
		return nil
	}
	if errors.As(err, new(*rendezvous.ClosedError)) {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	return err
}
