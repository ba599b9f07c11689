package launch

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// workerPatience is how much longer than the longest end of a workload a node
// waits for the head's word once a signal came.
const workerPatience = maxGrace + 5*time.Second

// work is a run on a node that is not the head: it becomes what the head tells
// it to be, until the head says that all is over.
func (r *run) work(ctx context.Context) error {
	// Slurm's signals come to all nodes at once. The head asks the workload to
	// end, which needs its nodes meanwhile.
	signalled := ctx
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(signalled, func() {
		cause := context.Cause(signalled)
		var reason *interrupted
		if !errors.As(cause, &reason) {
			cancel(cause)
			return
		}
		time.AfterFunc(workerPatience, func() { cancel(cause) })
	})
	defer stop()
	for _, step := range []func(context.Context) error{
		r.inspectHost, r.makeDirectories, r.join, r.startSandbox, r.startRoles, r.importImages, r.reportReady,
	} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			r.team.leave(err.Error())
			return err
		}
	}
	return r.team.serve(ctx)
}

func (r *run) join(ctx context.Context) error {
	if err := r.team.openSockets(r.host.cpus.Count); err != nil {
		return err
	}
	offer, err := r.host.offer(r.scratch.Path, 0)
	if err != nil {
		return err
	}
	if err := r.makeCgroup(); err != nil {
		return err
	}
	offer.CgroupsDelegated = r.cgroup != nil
	answer, err := r.team.join(ctx, offer)
	if err != nil {
		return err
	}
	r.plan, r.team.mesh = answer.Plan, answer.Mesh
	r.identities.nodes = append(r.identities.nodes, answer.Files)
	r.pulls = readPulls(r.plan, r.Getenv)
	return nil
}

func (r *run) reportReady(ctx context.Context) error {
	if err := r.crew.await(ctx, "node"); err != nil {
		return err
	}
	return r.team.leader.Send(ctx, news{Ready: true})
}

// fromNode is a log of another node, whose words come to the same terminal.
type fromNode struct {
	slog.Handler
	name string
}

func (f fromNode) Handle(ctx context.Context, record slog.Record) error {
	record.Message = f.name + ": " + record.Message
	return f.Handler.Handle(ctx, record)
}
