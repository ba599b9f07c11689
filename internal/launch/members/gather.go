package members

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/proof"
	"berth.dev/berth/internal/network/overlay"
)

// rejectLimit bounds how long a failed head waits for nodes, to reject them.
const rejectLimit = 3 * time.Second

// Gather waits for all other nodes and collects their offers. It returns one
// offer for each node. The first offer is this node's. It contains only OverlayMTU, the
// size of the largest packet that reaches the others.
func (m *Members) Gather(ctx context.Context, cpus int) ([]cluster.Offer, error) {
	if !m.Several() {
		return make([]cluster.Offer, 1), nil
	}
	if m.Size() == 1 {
		return m.prepareAlone(ctx, cpus)
	}
	var err error
	if m.listener, err = rendezvous.Listen(ctx, m.config); err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	ctx, cancel := m.waiting(ctx)
	defer cancel()
	others := m.config.Nodes[1:]
	if err := m.collectOffers(ctx, others); err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	if m.folder != nil {
		_ = m.folder.Clear()
	}
	slices.SortFunc(m.others, func(a, b *member) int {
		return cmp.Compare(slices.Index(others, a.name), slices.Index(others, b.name))
	})
	offers := []cluster.Offer{{}}
	var hosts []netip.Addr
	for _, w := range m.others {
		offers = append(offers, w.hello.Offer)
		hosts = append(hosts, w.address())
	}
	if err := checkFamilies(m.others); err != nil {
		return nil, exitcode.Wrap(exitcode.Config, err)
	}
	if m.sockets, err = m.data.Open(cpus, hosts...); err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	offers[0].OverlayMTU, err = overlay.MTU(hosts)
	return offers, exitcode.Wrap(exitcode.Unavailable, err)
}

// checkFamilies returns an error if the addresses of the nodes have two families. The sockets
// of each node except the head belong to the family of its address.
func checkFamilies(others []*member) error {
	for _, w := range others {
		if err := hostnet.SameFamily(w.name, w.address(), others[0].name, others[0].address()); err != nil {
			return err
		}
	}
	return nil
}

// collectOffers waits until all other nodes have connected and sent their offers.
// It stops when a node cannot take part or disconnects.
func (m *Members) collectOffers(ctx context.Context, others []string) error {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	arrived := make(chan struct{})
	go func() {
		for {
			peer, err := m.listener.Accept(ctx)
			if err != nil {
				return
			}
			go func() {
				if err := m.receiveOffer(ctx, peer, arrived); err != nil {
					giveUp(err)
				}
			}()
		}
	}()
	if err := m.listener.Await(ctx, others); err != nil {
		if gone := context.Cause(ctx); errors.As(gone, new(*goneError)) {
			return gone
		}
		return err
	}
	for range others {
		select {
		case <-arrived:
		case <-ctx.Done():
			return fmt.Errorf("wait for the other nodes: %w", context.Cause(ctx))
		}
	}
	return nil
}

// goneError reports a node that does not take part, and the cause.
type goneError struct {
	node  string
	cause error
}

func (e *goneError) Error() string {
	if closed, ok := errors.AsType[*rendezvous.ClosedError](e.cause); ok {
		return fmt.Sprintf("node %s cannot take part: %s", e.node, closed.Reason)
	}
	return e.cause.Error()
}

func (e *goneError) Unwrap() error { return e.cause }

// receiveOffer receives the offer of one node, and returns when the node
// disconnects or all offers have arrived. A connection that breaks before its
// first message is ignored, because the node connects again.
func (m *Members) receiveOffer(ctx context.Context, peer *rendezvous.Peer, arrived chan<- struct{}) error {
	w := &member{name: peer.Name(), peer: peer, returned: make(chan *rendezvous.Peer, 1)}
	m.mu.Lock()
	m.others = append(m.others, w)
	m.mu.Unlock()
	if err := peer.Receive(ctx, &w.hello); err != nil {
		m.mu.Lock()
		m.others = slices.DeleteFunc(m.others, func(other *member) bool { return other == w })
		m.mu.Unlock()
		if errors.As(err, new(*rendezvous.LostError)) || ctx.Err() != nil {
			return nil
		}
		return &goneError{w.name, err}
	}
	if w.hello.Version != cluster.Version() {
		return fmt.Errorf("node %s has berth %s, this node %s: use the same one on all nodes", w.name, w.hello.Version, cluster.Version())
	}
	select {
	case arrived <- struct{}{}:
	case <-ctx.Done():
		return nil
	}
	select {
	case <-peer.Done():
		return &goneError{w.name, peer.Err()}
	case <-ctx.Done():
		return nil
	}
}

// Decline reports the failure of a run to the other nodes if they still wait for
// this one. The head rejects the nodes that connect, and any other node reports to
// the head. Decline returns the run's result.
func (m *Members) Decline(ctx context.Context, code int, why error) (int, error) {
	switch {
	case why == nil || !m.Awaited():
		return code, why
	case m.Leads():
		m.rejectAll(why)
		return code, why
	}
	defer m.Leave(why.Error())
	return m.withdraw(ctx, why)
}

// withdraw reports to the head why this node cannot take part, so that no node
// waits for it. A head that receives the reason reports it to the user.
func (m *Members) withdraw(ctx context.Context, why error) (int, error) {
	ctx, cancel := m.waiting(ctx)
	defer cancel()
	head, err := m.findHead(ctx)
	if err != nil {
		return 0, why
	}
	return farewell(head, why)
}

// farewell closes the connection to the head with a reason. A head that receives the
// reason reports it to the user. Then farewell returns only its exit code, so that
// the user sees the reason once. Otherwise it returns why.
func farewell(head *rendezvous.Peer, why error) (int, error) {
	if head.Close(why.Error()) {
		return exitcode.Of(why), nil
	}
	return 0, why
}

// rejectAll rejects the nodes that connect. Otherwise they would look for their
// head in vain. It waits at most rejectLimit for the others.
func (m *Members) rejectAll(why error) {
	ctx, cancel := context.WithTimeout(context.Background(), rejectLimit)
	defer cancel()
	if m.listener == nil {
		var err error
		if m.listener, err = rendezvous.Listen(ctx, m.config); err != nil {
			return
		}
	}
	var leaving sync.WaitGroup
	for range len(m.config.Nodes) - 1 - len(m.others) {
		peer, err := m.listener.Accept(ctx)
		if err != nil {
			break
		}
		leaving.Go(func() { peer.Close(why.Error()) })
	}
	leaving.Wait()
	m.Leave(why.Error())
}

// Awaited reports whether the other nodes wait for this one: for the plans of the
// head, or for the offer of another node.
func (m *Members) Awaited() bool { return m.Size() > 1 && !m.introduced }

// address returns the destination of packets for the node's pods.
func (w *member) address() netip.Addr {
	if w.hello.Address.IsValid() {
		return w.hello.Address
	}
	return hostnet.HostOf(w.peer.RemoteAddr())
}

// checkSize returns an error if the plan of a node would be too large for a message once all
// seats are taken. The head's is at least as large as the others: it has more keys.
func checkSize(largest Welcome, nodes, seats int) error {
	size := func(message any) int {
		content, _ := json.Marshal(message) // Send reports an error
		return len(content)
	}
	left := rendezvous.DefaultMaxMessage - size(largest)
	each := size(hostnet.LargestChange(nodes+seats)) + len(",")
	if fit := max(0, left/each); left < 0 || fit < seats {
		return fmt.Errorf("plan a cluster of %d nodes and %d nodes of other jobs (--elastic): the message with all of their places would have %d bytes, and %d are the most; request fewer nodes, or give a smaller number for --elastic, here at most %d",
			nodes, seats, rendezvous.DefaultMaxMessage-left+seats*each, rendezvous.DefaultMaxMessage, fit)
	}
	return nil
}

// SendPlans sets up the network between the nodes and sends its plan to every
// other node.
func (m *Members) SendPlans(ctx context.Context, plans []cluster.Plan, keys identity.Set, archives []archive.Archive) error {
	if !m.Several() {
		return nil
	}
	m.introduced = true
	var source archive.Source
	if len(archives) > 0 {
		var err error
		if m.archives, err = archive.Serve(archives, m.config.Ports); err != nil {
			return exitcode.Wrap(exitcode.Unavailable, err)
		}
		source = m.archives.Source
	}
	key := m.keptKey
	if key == nil {
		var err error
		if key, err = proof.NewKey(); err != nil {
			return err
		}
	}
	m.served, m.source = archives, source
	m.lay(key, plans[0].Places(), m.others)
	largest := Welcome{Version: cluster.Version(), Plan: plans[0], Files: keys.Nodes[0], Network: m.places.View(0), Archives: archives, Source: source, Succession: m.failover, Own: keys.Owns[0]}
	if err := checkSize(largest, len(plans), plans[0].Seats); err != nil {
		return exitcode.Wrap(exitcode.Config, err)
	}
	for i, w := range m.others {
		w.node = plans[i+1].Node.Name
		var mayLead []byte
		if m.failover != nil {
			mayLead = keys.Owns[i+1]
		}
		err := w.peer.Send(ctx, Welcome{
			Version: cluster.Version(), Plan: plans[i+1], Files: keys.Nodes[i+1],
			Network:  m.endOf(i+1, w.peer),
			Archives: archives, Source: source,
			Succession: m.failover, Own: mayLead,
		})
		if err != nil {
			return exitcode.Wrap(exitcode.Unavailable, err)
		}
	}
	return nil
}
