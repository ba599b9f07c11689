package launch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/kube/lease"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/proof"
)

// inheritLimit bounds how long a new head waits for the other nodes to connect.
const inheritLimit = 15 * time.Second

// failover holds what the nodes need so that another node can lead the run after
// the loss of the head.
type failover struct {
	// Key authenticates the nodes to the head's successors.
	Key []byte
	// RunIDs identify the nodes' processes, in the order of the members.
	RunIDs []string
}

func newFailover(offers []cluster.Offer) (*failover, error) {
	key, err := proof.NewKey()
	if err != nil {
		return nil, err
	}
	s := &failover{Key: key}
	for _, offer := range offers {
		s.RunIDs = append(s.RunIDs, offer.RunID)
	}
	return s, nil
}

// canFailOver reports whether another node could lead this run. A run with a
// command has no successor, since the command runs only on the head.
func (r *run) canFailOver() bool {
	return r.plan.Replicated() && len(r.Spec.Command) == 0 && !r.Spec.FailFast
}

// config returns the rendezvous of the nodes with a successor of the head.
func (s *failover) config(of rendezvous.Config, head string) (rendezvous.Config, error) {
	nodes := []string{head}
	for _, node := range of.Nodes {
		if node != head {
			nodes = append(nodes, node)
		}
	}
	of.Nodes = nodes
	var err error
	of.Prover, err = rendezvous.NewPreShared(s.Key)
	return of, err
}

// acquireLease stores what a successor needs, and acquires and renews the leader
// lease.
func (r *run) acquireLease(ctx context.Context) error {
	if err := r.client.Remember(ctx, r.objects); err != nil {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	r.lease = lease.New(r.client.Dynamic(), r.plan.Node.Name)
	if err := r.lease.Acquire(ctx); err != nil {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	r.progress = &workload.Progress{}
	go r.renewLease(ctx)
	return nil
}

// renewLease renews the lease. It ends the run on this node if it loses the
// lease, since another node may lead the run then.
func (r *run) renewLease(ctx context.Context) {
	if err := r.lease.Renew(ctx, r.progress.String); err != nil {
		r.lostLease.Store(true)
		r.supervisor.GiveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("node %s ends: %w; the run goes on where two control planes reach each other", r.plan.Node.Name, err)))
	}
}

// errLeads is the reason why a node stops following a head.
var errLeads = errors.New("this node leads the run now")

// takeOver waits until this node has to lead the run, and leads it until its end.
// A signal ends signalled at once, and ctx only later. takeOver calls begin when
// this node becomes the leader.
func (r *run) takeOver(ctx, signalled context.Context, begin func(), giveUp context.CancelCauseFunc) (int, error) {
	var err error
	r.kubeconfig = r.members.own
	if r.client, err = workload.NewClient(r.kubeconfig); err != nil {
		return 0, err
	}
	r.lease = lease.New(r.client.Dynamic(), r.plan.Node.Name)
	previous, note, err := r.lease.AwaitExpiry(ctx)
	if err != nil {
		return 0, err
	}
	begin()
	r.progress = workload.ReadProgress(note)
	go r.renewLease(ctx)
	r.Log.Warn(fmt.Sprintf("node %s, which led the run, is lost; node %s leads it now", previous, r.plan.Node.Name))
	if err := r.becomeHead(ctx, previous, giveUp); err != nil {
		return 0, err
	}
	if r.objects, err = r.client.Remembered(ctx); err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, err)
	}
	if r.allocation != nil {
		go r.allocation.Inquire(ctx, giveUp)
	}
	signalled, tell := context.WithCancelCause(signalled)
	defer tell(nil)
	if err := r.listenForDown(ctx, tell); err != nil {
		return 0, err
	}
	work, end := allocation.WithGrace(signalled, r.askToEnd)
	// If this node's run ends, it stops following the workload.
	work, cut := context.WithCancelCause(work)
	stop := context.AfterFunc(ctx, func() { cut(context.Cause(ctx)) })
	defer stop()
	code := 0
	if r.Spec.Stay {
		err = r.stayUp(work)
	} else {
		code, err = r.follow(work)
	}
	end()
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case signalled.Err() != nil:
		return 0, r.allocation.Reason(context.Cause(signalled))
	}
	r.members.reportLosses()
	return code, err
}

// becomeHead makes this node the head that the others connect to, and monitors
// them.
func (r *run) becomeHead(ctx context.Context, previous string, giveUp context.CancelCauseFunc) error {
	t := r.members
	config, err := t.failover.config(t.config, t.config.Node)
	if err != nil {
		return err
	}
	if t.listener, err = rendezvous.Listen(ctx, config); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	t.introduced = true
	var others []*member
	var lost *member
	for i, planned := range r.plan.Members {
		w := &member{name: t.config.Nodes[i], node: planned.Name, ready: true, returned: make(chan *rendezvous.Peer, 1)}
		w.hello.Offer.RunID = t.failover.RunIDs[i]
		switch {
		case i == r.plan.Index:
		case w.node == previous:
			lost = w
		default:
			others = append(others, w)
		}
	}
	t.mu.Lock()
	t.others = others
	t.mu.Unlock()
	a := r.newMemberMonitor(giveUp)
	r.monitor = a
	a.complete.Store(true)
	go a.readmit(ctx)
	if lost != nil {
		go a.takeOutOfService(ctx, lost, fmt.Errorf("lost node %s: it does not lead the run any more", lost.name))
	}
	a.expected.Add(len(others))
	for _, w := range others {
		go a.expect(ctx, w)
	}
	return nil
}

// expect waits for a member of the previous head and monitors it.
func (m *memberMonitor) expect(ctx context.Context, w *member) {
	known := sync.OnceFunc(m.expected.Done)
	defer known()
	select {
	case peer := <-w.returned:
		if !m.setPeer(&w.peer, peer) {
			peer.Close("the run has ended")
			return
		}
		if peer.Send(ctx, welcome{Version: cluster.Version()}) == nil {
			known()
			m.follow(ctx, w)
			return
		}
	case <-time.After(inheritLimit):
	case <-ctx.Done():
		return
	}
	known()
	err := fmt.Errorf("lost node %s: it has not come to the node that leads the run now", w.name)
	if peer := m.handleLoss(ctx, w, err); peer != nil {
		m.follow(ctx, w)
	}
}

// findHead connects to the head or to one of its possible successors, whichever
// answers first.
func (m *members) findHead(ctx context.Context) (*rendezvous.Peer, error) {
	configs := []rendezvous.Config{m.config}
	if m.failover != nil {
		for _, node := range m.config.Nodes[1:cluster.ControlNodes] {
			if node == m.config.Node {
				continue
			}
			config, err := m.failover.config(m.config, node)
			if err != nil {
				return nil, err
			}
			configs = append(configs, config)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		peer *rendezvous.Peer
		err  error
	}
	answers := make(chan answer, len(configs))
	for _, config := range configs {
		go func() {
			peer, err := joinHead(ctx, config)
			answers <- answer{peer, err}
		}()
	}
	var found *rendezvous.Peer
	var problems []error
	for range configs {
		switch got := <-answers; {
		case got.peer == nil:
			problems = append(problems, got.err)
		case found == nil:
			found = got.peer
			cancel()
		default: // two heads; one of them will give up
			got.peer.Drop()
		}
	}
	if found == nil {
		return nil, errors.Join(problems...)
	}
	return found, nil
}

func joinHead(ctx context.Context, config rendezvous.Config) (*rendezvous.Peer, error) {
	addresses, err := config.Addresses(ctx, config.Nodes[0])
	if err != nil {
		return nil, fmt.Errorf("find the addresses of the head: %w", err)
	}
	return rendezvous.Join(ctx, config, oneFamily(addresses))
}
