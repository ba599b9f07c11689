package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/overlay"
	"berth.dev/berth/internal/rendezvous"
)

const (
	// workerPatience is how much longer than the longest end of a workload a
	// node waits for the head's word once a signal came.
	workerPatience = maxGrace + 5*time.Second
	// returnLimit is how long a node tries to return to a head of which it
	// hears nothing, brokenLimit to one that has closed the connection: that is
	// dead, or takes the node for dead.
	returnLimit = time.Minute
	brokenLimit = time.Second
)

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
		r.inspectHost, r.makeDirectories, r.join, r.startSandbox, r.startRoles, r.importImages, r.reportReady, r.serve,
	} {
		if err := step(ctx); err != nil {
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			if errors.Is(err, errFirstEnded) {
				return nil
			}
			r.team.leave(err.Error())
			return err
		}
	}
	return nil
}

// join finds the head and asks it what this node is to be.
func (r *run) join(ctx context.Context) error {
	offer, err := r.host.offer(r.scratch.Path, 0, r.labels)
	if err != nil {
		return err
	}
	if err := r.makeCgroup(); err != nil {
		return err
	}
	offer.CgroupsDelegated = r.cgroup != nil
	answer, err := r.team.join(ctx, offer, r.host.cpus.Count)
	if err != nil {
		return err
	}
	r.plan, r.team.mesh = answer.Plan, answer.Mesh
	r.archives, r.source = answer.Archives, answer.Source
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

// serve returns when the head says that all is over, or when it is gone.
func (r *run) serve(ctx context.Context) error {
	return r.team.serve(ctx, hello{Version: cluster.Version(), Offer: cluster.Offer{RunID: r.plan.RunID}, Returning: true})
}

func (t *team) join(ctx context.Context, offer cluster.Offer, cpus int) (welcome, error) {
	ctx, cancel := t.waiting(ctx)
	defer cancel()
	if err := t.connect(ctx); err != nil {
		return welcome{}, fail(ExitUnavailable, err)
	}
	head := hostOf(t.leader.RemoteAddr())
	var err error
	if t.sockets, err = t.data.open(cpus, head); err != nil {
		return welcome{}, fail(ExitUnavailable, err)
	}
	offer.MeshMTU = t.data.mtu
	if !t.data.address.IsValid() {
		if offer.MeshMTU, err = overlay.MTU([]netip.Addr{head}); err != nil {
			return welcome{}, fail(ExitUnavailable, err)
		}
	}
	answer, err := t.introduce(ctx, hello{
		Version: cluster.Version(), Offer: offer,
		Address: t.data.address, Ports: t.sockets.ports(),
	})
	return answer, fail(ExitUnavailable, err)
}

// connect finds the head.
func (t *team) connect(ctx context.Context) error {
	addresses, err := t.config.Addresses(ctx, t.config.Nodes[0])
	if err != nil {
		return fmt.Errorf("find the addresses of the head: %w", err)
	}
	head, err := rendezvous.Join(ctx, t.config, addresses)
	if err != nil {
		return err
	}
	if !t.keep(&t.leader, head) {
		head.Close("this node has left")
		return errors.New("this node has left")
	}
	return nil
}

// introduce says who this is, and hears the head's answer.
func (t *team) introduce(ctx context.Context, said hello) (answer welcome, err error) {
	if err := t.leader.Send(ctx, said); err != nil {
		return answer, err
	}
	err = t.leader.Receive(ctx, &answer)
	return answer, err
}

// serve stays with the head until that says that all is over. A head that is
// lost is looked for with the given words.
func (t *team) serve(ctx context.Context, again hello) error {
	for {
		var ignored news
		err := t.leader.Receive(ctx, &ignored)
		var closed *rendezvous.ClosedError
		var lost *rendezvous.LostError
		switch {
		case err == nil:
		case errors.As(err, &closed):
			return nil
		case !errors.As(err, &lost):
			return err
		default:
			if t.comeBack(ctx, again, lost) != nil {
				return fail(ExitUnavailable, lost)
			}
		}
	}
}

// comeBack connects to a head that was lost.
func (t *team) comeBack(ctx context.Context, again hello, lost *rendezvous.LostError) error {
	limit := brokenLimit
	if lost.Silent() {
		limit = returnLimit
		t.log.Warn(fmt.Sprintf("%v; looking for it", lost))
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := t.connect(ctx)
	if err == nil {
		_, err = t.introduce(ctx, again)
	}
	if err != nil {
		t.log.Debug("cannot return to the head: " + err.Error())
	}
	return err
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
