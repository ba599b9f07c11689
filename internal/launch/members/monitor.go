package members

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

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
)

// helloLimit bounds the wait for the first message of a node that returns.
const helloLimit = 10 * time.Second

// Reporter reports to the API server that a node is lost or has come back.
type Reporter interface {
	Lose(ctx context.Context, node, reason string) error
	Regain(ctx context.Context, node string) error
}

// MonitorConfig is the configuration of a Monitor.
type MonitorConfig struct {
	Reporter Reporter
	// FailFast ends the run when a node is lost.
	FailFast bool
	// GiveUp ends the run.
	GiveUp context.CancelCauseFunc
	// Ending reports whether the workload was asked to end. Even then the other
	// nodes are needed until the workload has ended. Ending may be nil.
	Ending func() bool
	// Replicas names the nodes with a control plane if there are several.
	Replicas []string
}

// Monitor watches the other nodes for the head, once they have their plans.
type Monitor struct {
	*Members
	MonitorConfig
	// lost holds the lost nodes among Replicas. Members.mu guards it.
	lost map[string]bool
	// complete is set when all nodes have been ready. A node that dies earlier
	// ends the run, because no workload has begun.
	complete atomic.Bool
	// ready receives one value from each node that has become ready.
	ready          chan struct{}
	importRequests importRequests
	// expected counts the nodes that a new head waits for.
	expected sync.WaitGroup
}

func (m *Members) newMonitor(config MonitorConfig) *Monitor {
	return &Monitor{Members: m, MonitorConfig: config, lost: map[string]bool{}, ready: make(chan struct{}, len(m.others))}
}

// Monitor watches the other nodes until this node leaves them. ctx may end before that,
// with a signal: pods that are asked to end may be on a node that is lost then.
func (m *Members) Monitor(ctx context.Context, config MonitorConfig) *Monitor {
	monitor := m.newMonitor(config)
	ctx = m.untilLeaving(ctx)
	for _, w := range m.others {
		go monitor.follow(ctx, w)
	}
	if m.listener != nil { // on a single node there is none
		go monitor.readmit(ctx)
	}
	return monitor
}

// untilLeaving returns a context that ends when this node leaves the others.
func (m *Members) untilLeaving(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.endMonitor = cancel
	return ctx
}

// ending reports whether the workload was asked to end.
func (m *Monitor) ending() bool { return m.Ending != nil && m.Ending() }

// Await waits until all other nodes are ready. It returns the cause of ctx if that
// ends earlier.
func (m *Monitor) Await(ctx context.Context) error {
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
func (m *Monitor) follow(ctx context.Context, w *member) {
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
func (m *Monitor) handleLoss(ctx context.Context, w *member, err error) *rendezvous.Peer {
	begun := m.complete.Load()
	var late <-chan time.Time
	var lost *rendezvous.LostError
	switch ending := m.ending(); {
	case ending && !begun:
		return nil // no pod is on the node
	case m.FailFast && !ending || !begun && (!errors.As(err, &lost) || !lost.Silent()):
		settle(ctx)
		if !begun {
			err = &goneError{w.name, err}
		}
		m.GiveUp(exitcode.Wrap(exitcode.Unavailable, err))
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
			m.GiveUp(exitcode.Wrap(exitcode.Unavailable, err))
			return nil
		case <-ctx.Done():
			return nil
		}
		if !m.setPeer(w, peer) {
			peer.Close("the run has ended")
			return nil
		}
		if m.getSeats().welcomeBack(ctx, peer) != nil {
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

// settle waits until settleTime is over or ctx ends. Slurm kills a step's processes on
// all nodes, but not at the same instant: a node that seems lost may be the first to
// end with the whole step.
func settle(ctx context.Context) {
	select {
	case <-time.After(settleTime):
	case <-ctx.Done():
	}
}

// takeOutOfService continues without a node and reports it to the API server. It ends
// the run if too few control planes are left.
func (m *Monitor) takeOutOfService(ctx context.Context, w *member, why error) {
	m.mu.Lock()
	if slices.Contains(m.Replicas, w.node) {
		m.lost[w.node] = true
	}
	gone := slices.Sorted(maps.Keys(m.lost))
	m.mu.Unlock()
	if left := len(m.Replicas) - len(gone); len(gone) > 0 && left <= len(m.Replicas)/2 {
		// Do not wait for a node that fell silent: it did not end with the step. Soon
		// this node gives up its lease, and its last message would not name the nodes.
		if lost := (*rendezvous.LostError)(nil); !errors.As(why, &lost) || !lost.Silent() {
			settle(ctx)
		}
		m.GiveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w; %s are lost, and the cluster cannot go on with %d of %d control planes",
			why, strings.Join(gone, " and "), left, len(m.Replicas))))
		return
	}
	// Store the message first, since the workload may end as soon as its pods are
	// elsewhere.
	if m.ending() {
		m.losses.add(w.name, fmt.Sprintf("%v; the workload ends without the node and its pods", why))
	} else {
		m.losses.add(w.name, fmt.Sprintf("%v; the run goes on without the node, its pods start on others", why))
	}
	// The API server may take its time to answer.
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		if settle(ctx); ctx.Err() == nil {
			m.losses.report(m.log, w.name)
		}
	}()
	m.warn(ctx, m.Reporter.Lose(ctx, w.node, why.Error()))
	<-reported
}

// ReportLosses reports the nodes that were lost just before the workload ended,
// since srun will mention them.
func (m *Members) ReportLosses() {
	m.losses.report(m.log, m.config.Nodes...)
}

// returnToService continues with a node that is back.
func (m *Monitor) returnToService(ctx context.Context, w *member) {
	m.mu.Lock()
	delete(m.lost, w.node)
	m.mu.Unlock()
	m.warn(ctx, m.Reporter.Regain(ctx, w.node))
}

// AwaitExpected waits until each node that a new head expects has connected or is lost.
// It returns the cause of ctx if that ends earlier.
func (m *Monitor) AwaitExpected(ctx context.Context) error {
	complete := make(chan struct{})
	go func() {
		defer close(complete)
		m.expected.Wait()
	}()
	select {
	case <-complete:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// receive handles messages of a node until its connection ends, and returns the
// error.
func (m *Monitor) receive(ctx context.Context, w *member, peer *rendezvous.Peer) error {
	for {
		var status statusMessage
		if err := peer.Receive(ctx, &status); err != nil {
			return err
		}
		if status.Report != nil {
			m.importRequests.deliver(w.name, *status.Report)
		}
		if status.Ready && !w.ready {
			w.ready = true
			m.ready <- struct{}{}
		}
	}
}

// warn reports an error of the API server, unless the run is ending.
func (m *Monitor) warn(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		m.log.Warn(err.Error())
	}
}

// readmit accepts nodes that reconnect after their connection was lost.
func (m *Monitor) readmit(ctx context.Context) {
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
func (m *Monitor) admit(ctx context.Context, peer *rendezvous.Peer) error {
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
