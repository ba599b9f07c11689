package members

import (
	"context"
	"maps"
	"sync"
	"time"

	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
)

// spreadDelay is the time that changes of seats are collected. When many nodes join at once,
// each would otherwise cause a message to each other one.
const spreadDelay = 50 * time.Millisecond

// spread sends changes of seats to all nodes. Each node receives the changes of a place in their
// order, and a slow node delays no other.
type spread struct {
	wake chan struct{} // receives a value after a change

	mu sync.Mutex
	// collected holds the changes since the last messages. outboxes holds the changes that wait
	// for a node that is receiving a message.
	collected changes
	outboxes  map[*rendezvous.Peer]changes
}

// changes holds the last change of each place.
type changes map[int]hostnet.Change

func newSpread() *spread {
	return &spread{wake: make(chan struct{}, 1), collected: changes{}, outboxes: map[*rendezvous.Peer]changes{}}
}

// add lets run send a change soon.
func (s *spread) add(change hostnet.Change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collected[change.Index] = change
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// run sends changes to the nodes that to returns until ctx ends. A node that is new there must
// know all changes until then.
func (s *spread) run(ctx context.Context, to func() []connection) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(spreadDelay):
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		collected := s.collected
		s.collected = changes{}
		s.mu.Unlock()
		// Ask for the nodes after that: a node that is new now receives the later changes.
		nodes := to()
		s.mu.Lock()
		for _, node := range nodes {
			s.post(ctx, node.peer, collected)
		}
		s.mu.Unlock()
	}
}

// post adds changes to the outbox of a node. The caller holds mu.
func (s *spread) post(ctx context.Context, peer *rendezvous.Peer, collected changes) {
	if peer == nil || peer.Err() != nil {
		return // the node learns all when it returns
	}
	outbox, busy := s.outboxes[peer]
	if !busy {
		outbox = changes{}
		s.outboxes[peer] = outbox
		go s.empty(ctx, peer)
	}
	maps.Copy(outbox, collected)
}

// empty sends a node the changes in its outbox until there are no more.
func (s *spread) empty(ctx context.Context, peer *rendezvous.Peer) {
	for {
		s.mu.Lock()
		waiting := s.outboxes[peer]
		if len(waiting) == 0 || peer.Err() != nil {
			delete(s.outboxes, peer)
			s.mu.Unlock()
			return
		}
		s.outboxes[peer] = changes{}
		s.mu.Unlock()
		var message headMessage
		for _, change := range waiting {
			message.Changes = append(message.Changes, change)
		}
		sending, cancel := context.WithTimeout(ctx, tellLimit)
		_ = peer.Send(sending, message) // a node that is lost meanwhile learns all when it returns
		cancel()
	}
}
