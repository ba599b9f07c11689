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

// helloLimit bounds the wait for the first message of a node that returns.
const helloLimit = 10 * time.Second

// memberMonitor watches the other nodes for the head, once they have their plans.
type memberMonitor struct {
	*members
	reporter *nodeloss.Reporter
	failFast bool
	giveUp   context.CancelCauseFunc
	// replicas names the nodes with a control plane if there are several. lost
	// holds the lost ones among them. The mutex of members guards it.
	replicas []string
	lost     map[string]bool
	// complete is set when all nodes have been ready. A node that dies earlier
	// ends the run, which has not begun.
	complete atomic.Bool
	ready    chan struct{}
	errands  errands
	// expected counts the nodes that a new head waits for.
	expected sync.WaitGroup
}

// newMemberMonitor returns the monitor of this node, which is the head.
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

// monitorMembers watches the other nodes until ctx ends.
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

// follow watches one node while it is connected, lost, and back again.
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

// handleLoss handles the loss of a node. It returns the new connection when the
// node is back, or nil when the run ends.
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
		// The node may be busy starting. No pod waits for it yet.
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

// settleTime bounds the delay between two nodes in noticing the end of the step.
const settleTime = 500 * time.Millisecond

// settle waits in case the end of another node is that of the whole step. Slurm
// kills the step's processes on all nodes, but not at the same instant.
func settle(ctx context.Context) {
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
	}
}

// takeOutOfService continues without a node, unless too few control planes are
// left.
func (m *memberMonitor) takeOutOfService(ctx context.Context, w *member, why error) {
	m.mu.Lock()
	if slices.Contains(m.replicas, w.node) {
		m.lost[w.node] = true
	}
	gone := slices.Sorted(maps.Keys(m.lost))
	m.mu.Unlock()
	if left := len(m.replicas) - len(gone); len(gone) > 0 && left <= len(m.replicas)/2 {
		settle(ctx)
		m.giveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w; %s are lost, and the cluster cannot go on with %d of %d control planes",
			why, strings.Join(gone, " and "), left, len(m.replicas))))
		return
	}
	// Store the message first, since the workload may end as soon as its pods are
	// elsewhere.
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

// reportLoss reports a lost node to the user, once.
func (m *members) reportLoss(node string) {
	m.mu.Lock()
	text, untold := m.unreported[node]
	delete(m.unreported, node)
	m.mu.Unlock()
	if untold {
		m.log.Warn(text)
	}
}

// reportLosses reports the nodes that were lost just before the workload ended,
// since srun will mention them.
func (m *members) reportLosses() {
	if m == nil {
		return
	}
	for _, name := range m.config.Nodes {
		m.reportLoss(name)
	}
}

// returnToService continues with a node that is back.
func (m *memberMonitor) returnToService(ctx context.Context, w *member) {
	m.mu.Lock()
	delete(m.lost, w.node)
	m.mu.Unlock()
	m.warn(ctx, m.reporter.Regain(ctx, w.node))
}

// awaitExpected returns when a new head expects no more nodes: each one has
// connected or is lost.
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

// receive handles messages of a node until its connection ends, and returns the
// error.
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

// warn reports an error of the API server, unless the run is ending.
func (m *memberMonitor) warn(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		m.log.Warn(err.Error())
	}
}

// readmit accepts nodes that reconnect after their connection was lost.
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

// admit accepts a node that reconnects with the same process. A new process on
// the node does not know the cluster and is refused.
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
