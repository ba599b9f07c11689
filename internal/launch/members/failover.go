package members

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
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

// config returns a copy of the configuration of for a rendezvous with head as the head
// instead of the lost one.
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

// PrepareFailover prepares the succession of the head. Without it, the run ends
// with the head.
func (m *Members) PrepareFailover(offers []cluster.Offer) (err error) {
	m.failover, err = newFailover(offers)
	return err
}

// CanFailOver reports whether another node can lead the run after the head.
func (m *Members) CanFailOver() bool { return m.failover != nil }

// BecomeHead makes this node the head that the others connect to, and monitors
// them. previous is the name in Kubernetes of the head that was lost.
func (m *Members) BecomeHead(ctx context.Context, plan cluster.Plan, previous string, config MonitorConfig) (*Monitor, error) {
	successor, err := m.failover.config(m.config, m.config.Node)
	if err != nil {
		return nil, err
	}
	if m.listener, err = rendezvous.Listen(ctx, successor); err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	m.introduced = true
	var others []*member
	var lost *member
	for i, planned := range plan.Members {
		w := &member{name: m.config.Nodes[i], node: planned.Name, ready: true, returned: make(chan *rendezvous.Peer, 1)}
		w.hello.Offer.RunID = m.failover.RunIDs[i]
		switch {
		case i == plan.Index:
		case w.node == previous:
			lost = w
		default:
			others = append(others, w)
		}
	}
	m.mu.Lock()
	m.others = others
	m.mu.Unlock()
	monitor := m.newMonitor(config)
	monitor.complete.Store(true)
	ctx = m.untilLeaving(ctx)
	go monitor.readmit(ctx)
	if lost != nil {
		go monitor.takeOutOfService(ctx, lost, fmt.Errorf("lost node %s: it does not lead the run any more", lost.name))
	}
	monitor.expected.Add(len(others))
	for _, w := range others {
		go monitor.expect(ctx, w)
	}
	return monitor, nil
}

// expect waits for a member of the previous head and monitors it.
func (m *Monitor) expect(ctx context.Context, w *member) {
	known := sync.OnceFunc(m.expected.Done)
	defer known()
	select {
	case peer := <-w.returned:
		if !m.setPeer(w, peer) {
			peer.Close("the run has ended")
			return
		}
		if peer.Send(ctx, Welcome{Version: cluster.Version()}) == nil {
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
func (m *Members) findHead(ctx context.Context) (*rendezvous.Peer, error) {
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
