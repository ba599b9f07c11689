package launch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/kube/nodeloss"
)

// helloLimit bounds the wait for the first word of a node that returns.
const helloLimit = 10 * time.Second

// attendance is how the head looks after the other nodes once they know what
// they are to be.
type attendance struct {
	*team
	keeper   *nodeloss.Keeper
	failFast bool
	giveUp   context.CancelCauseFunc
	// replicas are the nodes with a control plane, if there are several, and
	// lost those of them that are, guarded by the team's mutex.
	replicas []string
	lost     map[string]bool
	// complete: all nodes were ready. One that dies earlier ends the run, which
	// has not begun.
	complete atomic.Bool
	ready    chan struct{}
	errands  errands
	// expected are the nodes that a new head waits for.
	expected sync.WaitGroup
}

// newAttendance is how this node, as the head, looks after the others.
func (r *run) newAttendance(giveUp context.CancelCauseFunc) *attendance {
	a := &attendance{
		team: r.team, keeper: nodeloss.NewKeeper(r.client.Dynamic()), failFast: r.Spec.FailFast, giveUp: giveUp,
		lost: map[string]bool{}, ready: make(chan struct{}, len(r.team.workers)),
	}
	if r.plan.Replicated() {
		for _, member := range r.plan.Replicas() {
			a.replicas = append(a.replicas, member.Name)
		}
	}
	return a
}

// attend looks after the other nodes until ctx ends.
func (r *run) attend(ctx context.Context) {
	r.attendance = r.newAttendance(r.crew.giveUp)
	for _, w := range r.team.workers {
		go r.attendance.follow(ctx, w)
	}
	go r.attendance.readmit(ctx)
}

// await returns when all other nodes are ready.
func (a *attendance) await(ctx context.Context) error {
	for range a.workers {
		select {
		case <-a.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	a.complete.Store(true)
	return nil
}

// follow looks after one node: as long as it is connected, while it is lost, and
// when it is back.
func (a *attendance) follow(ctx context.Context, w *worker) {
	for peer := w.peer; peer != nil; {
		err := a.hear(ctx, w, peer)
		var closed *rendezvous.ClosedError
		if ctx.Err() != nil || errors.As(err, &closed) && closed.Here {
			return
		}
		peer = a.miss(ctx, w, err)
	}
}

// miss acts on the loss of a node and returns the connection of one that is
// back, or nil when the end is near.
func (a *attendance) miss(ctx context.Context, w *worker, err error) *rendezvous.Peer {
	begun := a.complete.Load()
	var late <-chan time.Time
	var lost *rendezvous.LostError
	switch {
	case a.failFast || !begun && (!errors.As(err, &lost) || !lost.Silent()):
		settle(ctx)
		if !begun {
			err = &goneError{w.name, err}
		}
		a.giveUp(exitcode.Wrap(exitcode.Unavailable, err))
		return nil
	case !begun:
		// Busy with its start, perhaps. No pod is there that waits for it.
		a.log.Warn(fmt.Sprintf("%v; waiting for it", err))
		late = time.After(a.wait)
	default:
		a.lose(ctx, w, err)
	}
	for {
		var peer *rendezvous.Peer
		select {
		case peer = <-w.returned:
		case <-late:
			a.giveUp(exitcode.Wrap(exitcode.Unavailable, err))
			return nil
		case <-ctx.Done():
			return nil
		}
		if !a.keep(&w.peer, peer) {
			peer.Close("the run has ended")
			return nil
		}
		if peer.Send(ctx, welcome{Version: cluster.Version()}) != nil {
			continue // lost again
		}
		if begun {
			a.regain(ctx, w)
		}
		a.log.Warn("node " + w.name + " is back")
		return peer
	}
}

// settleTime is how much later than another node this one may be told that the
// step is over.
const settleTime = 500 * time.Millisecond

// settle waits whether the end of another node was that of the whole step: Slurm
// kills its processes on all nodes, but not in the same instant.
func settle(ctx context.Context) {
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
	}
}

// lose goes on without a node, unless with it the majority of the control
// planes is gone.
func (a *attendance) lose(ctx context.Context, w *worker, why error) {
	a.mu.Lock()
	if slices.Contains(a.replicas, w.node) {
		a.lost[w.node] = true
	}
	gone := slices.Sorted(maps.Keys(a.lost))
	a.mu.Unlock()
	if left := len(a.replicas) - len(gone); len(gone) > 0 && left <= len(a.replicas)/2 {
		settle(ctx)
		a.giveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w; of the %d control planes those of %s are lost, and the cluster cannot go on with %d",
			why, len(a.replicas), strings.Join(gone, " and "), left)))
		return
	}
	// First, as the workload may end as soon as its pods are elsewhere.
	a.mu.Lock()
	if a.untold == nil {
		a.untold = map[string]string{}
	}
	a.untold[w.name] = fmt.Sprintf("%v; the run goes on without the node, its pods start on others", why)
	a.mu.Unlock()
	a.tell(ctx, a.keeper.Lose(ctx, w.node, why.Error()))
	if settle(ctx); ctx.Err() == nil {
		a.tellLoss(w.name)
	}
}

// tellLoss tells the user that a node is lost, once.
func (t *team) tellLoss(node string) {
	t.mu.Lock()
	text, untold := t.untold[node]
	delete(t.untold, node)
	t.mu.Unlock()
	if untold {
		t.log.Warn(text)
	}
}

// tellLosses tells of the nodes that were lost just before the workload ended,
// since srun will.
func (t *team) tellLosses() {
	if t == nil {
		return
	}
	for _, name := range t.config.Nodes {
		t.tellLoss(name)
	}
}

// regain goes on with a node that is back.
func (a *attendance) regain(ctx context.Context, w *worker) {
	a.mu.Lock()
	delete(a.lost, w.node)
	a.mu.Unlock()
	a.tell(ctx, a.keeper.Regain(ctx, w.node))
}

// allHeard returns when no node is on its way to a head that is new any more: each
// has come, or is lost.
func (a *attendance) allHeard(ctx context.Context) error {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		a.expected.Wait()
	}()
	select {
	case <-heard:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hear listens to a node until its connection ends, and says how.
func (a *attendance) hear(ctx context.Context, w *worker, peer *rendezvous.Peer) error {
	for {
		var told news
		if err := peer.Receive(ctx, &told); err != nil {
			return err
		}
		if told.Report != nil {
			a.errands.heard(w.name, *told.Report)
		}
		if told.Ready && !w.ready {
			w.ready = true
			a.ready <- struct{}{}
		}
	}
}

// tell reports what the API server did not take. It may be about to end.
func (a *attendance) tell(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		a.log.Warn(err.Error())
	}
}

// readmit hears the nodes that come again after their connection was lost.
func (a *attendance) readmit(ctx context.Context) {
	for {
		peer, err := a.listener.Accept(ctx)
		if err != nil {
			return
		}
		go func() {
			if err := a.admit(ctx, peer); err != nil {
				a.log.Debug("node " + peer.Name() + " is not taken back: " + err.Error())
				peer.Close(err.Error())
			}
		}()
	}
}

// admit takes a node back that still is what it was. Another process on the
// same node knows nothing of the cluster.
func (a *attendance) admit(ctx context.Context, peer *rendezvous.Peer) error {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	var said hello
	if err := peer.Receive(ctx, &said); err != nil {
		return err
	}
	for _, w := range a.workers {
		if w.name != peer.Name() {
			continue
		}
		if !said.Returning || said.Offer.RunID != w.hello.Offer.RunID {
			return errors.New("the cluster has started without this process")
		}
		select {
		case w.returned <- peer:
			return nil
		default:
			return errors.New("this node has come back already")
		}
	}
	return errors.New("this node is not part of the cluster")
}
