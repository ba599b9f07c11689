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

// memberMonitor is how the head looks after the other nodes once they know what
// they are to be.
type memberMonitor struct {
	*members
	reporter *nodeloss.Reporter
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

// newMemberMonitor is how this node, as the head, looks after the others.
func (r *run) newMemberMonitor(giveUp context.CancelCauseFunc) *memberMonitor {
	a := &memberMonitor{
		members: r.members, reporter: nodeloss.NewReporter(r.client.Dynamic()), failFast: r.Spec.FailFast, giveUp: giveUp,
		lost: map[string]bool{}, ready: make(chan struct{}, len(r.members.others)),
	}
	if r.plan.Replicated() {
		for _, member := range r.plan.Replicas() {
			a.replicas = append(a.replicas, member.Name)
		}
	}
	return a
}

// monitorMembers looks after the other nodes until ctx ends.
func (r *run) monitorMembers(ctx context.Context) {
	r.monitor = r.newMemberMonitor(r.supervisor.GiveUp)
	for _, w := range r.members.others {
		go r.monitor.follow(ctx, w)
	}
	go r.monitor.readmit(ctx)
}

// await returns when all other nodes are ready.
func (m *memberMonitor) await(ctx context.Context) error {
	for range m.others {
		select {
		case <-m.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	m.complete.Store(true)
	return nil
}

// follow looks after one node: as long as it is connected, while it is lost, and
// when it is back.
func (m *memberMonitor) follow(ctx context.Context, w *member) {
	for peer := w.peer; peer != nil; {
		err := m.receive(ctx, w, peer)
		var closed *rendezvous.ClosedError
		if ctx.Err() != nil || errors.As(err, &closed) && closed.Here {
			return
		}
		peer = m.handleLoss(ctx, w, err)
	}
}

// handleLoss acts on the loss of a node and returns the connection of one that is
// back, or nil when the end is near.
func (m *memberMonitor) handleLoss(ctx context.Context, w *member, err error) *rendezvous.Peer {
	begun := m.complete.Load()
	var late <-chan time.Time
	var lost *rendezvous.LostError
	switch {
	case m.failFast || !begun && (!errors.As(err, &lost) || !lost.Silent()):
		settle(ctx)
		if !begun {
			err = &goneError{w.name, err}
		}
		m.giveUp(exitcode.Wrap(exitcode.Unavailable, err))
		return nil
	case !begun:
		// Busy with its start, perhaps. No pod is there that waits for it.
		m.log.Warn(fmt.Sprintf("%v; waiting for it", err))
		late = time.After(m.wait)
	default:
		m.takeOutOfService(ctx, w, err)
	}
	for {
		var peer *rendezvous.Peer
		select {
		case peer = <-w.returned:
		case <-late:
			m.giveUp(exitcode.Wrap(exitcode.Unavailable, err))
			return nil
		case <-ctx.Done():
			return nil
		}
		if !m.setPeer(&w.peer, peer) {
			peer.Close("the run has ended")
			return nil
		}
		if peer.Send(ctx, welcome{Version: cluster.Version()}) != nil {
			continue // lost again
		}
		if begun {
			m.returnToService(ctx, w)
		}
		m.log.Warn("node " + w.name + " is back")
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

// takeOutOfService goes on without a node, unless with it the majority of the control
// planes is gone.
func (m *memberMonitor) takeOutOfService(ctx context.Context, w *member, why error) {
	m.mu.Lock()
	if slices.Contains(m.replicas, w.node) {
		m.lost[w.node] = true
	}
	gone := slices.Sorted(maps.Keys(m.lost))
	m.mu.Unlock()
	if left := len(m.replicas) - len(gone); len(gone) > 0 && left <= len(m.replicas)/2 {
		settle(ctx)
		m.giveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w; of the %d control planes those of %s are lost, and the cluster cannot go on with %d",
			why, len(m.replicas), strings.Join(gone, " and "), left)))
		return
	}
	// First, as the workload may end as soon as its pods are elsewhere.
	m.mu.Lock()
	if m.unreported == nil {
		m.unreported = map[string]string{}
	}
	m.unreported[w.name] = fmt.Sprintf("%v; the run goes on without the node, its pods start on others", why)
	m.mu.Unlock()
	m.warn(ctx, m.reporter.Lose(ctx, w.node, why.Error()))
	if settle(ctx); ctx.Err() == nil {
		m.reportLoss(w.name)
	}
}

// reportLoss tells the user that a node is lost, once.
func (m *members) reportLoss(node string) {
	m.mu.Lock()
	text, untold := m.unreported[node]
	delete(m.unreported, node)
	m.mu.Unlock()
	if untold {
		m.log.Warn(text)
	}
}

// reportLosses tells of the nodes that were lost just before the workload ended,
// since srun will.
func (m *members) reportLosses() {
	if m == nil {
		return
	}
	for _, name := range m.config.Nodes {
		m.reportLoss(name)
	}
}

// returnToService goes on with a node that is back.
func (m *memberMonitor) returnToService(ctx context.Context, w *member) {
	m.mu.Lock()
	delete(m.lost, w.node)
	m.mu.Unlock()
	m.warn(ctx, m.reporter.Regain(ctx, w.node))
}

// awaitExpected returns when no node is on its way to a head that is new any more: each
// has come, or is lost.
func (m *memberMonitor) awaitExpected(ctx context.Context) error {
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		m.expected.Wait()
	}()
	select {
	case <-heard:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive listens to a node until its connection ends, and says how.
func (m *memberMonitor) receive(ctx context.Context, w *member, peer *rendezvous.Peer) error {
	for {
		var told statusMessage
		if err := peer.Receive(ctx, &told); err != nil {
			return err
		}
		if told.Report != nil {
			m.errands.deliver(w.name, *told.Report)
		}
		if told.Ready && !w.ready {
			w.ready = true
			m.ready <- struct{}{}
		}
	}
}

// warn reports what the API server did not take. It may be about to end.
func (m *memberMonitor) warn(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		m.log.Warn(err.Error())
	}
}

// readmit hears the nodes that come again after their connection was lost.
func (m *memberMonitor) readmit(ctx context.Context) {
	for {
		peer, err := m.listener.Accept(ctx)
		if err != nil {
			return
		}
		go func() {
			if err := m.admit(ctx, peer); err != nil {
				m.log.Debug("node " + peer.Name() + " is not taken back: " + err.Error())
				peer.Close(err.Error())
			}
		}()
	}
}

// admit takes a node back that still is what it was. Another process on the
// same node knows nothing of the cluster.
func (m *memberMonitor) admit(ctx context.Context, peer *rendezvous.Peer) error {
	ctx, cancel := context.WithTimeout(ctx, helloLimit)
	defer cancel()
	var said hello
	if err := peer.Receive(ctx, &said); err != nil {
		return err
	}
	for _, w := range m.others {
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
