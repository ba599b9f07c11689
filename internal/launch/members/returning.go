package members

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
)

// errUnknownSeat is the refusal of a node that returns to a head that does not expect it.
var errUnknownSeat = errors.New("this head does not expect the node: it had no seat when the state of the cluster was saved, or returns too late; let it join again ('berth join')")

// absent reports whether a node may still return. The caller holds Seats.mu.
func (n *seated) absent() bool { return n.peer == nil && !n.left }

// reserve keeps the seats of the nodes of the previous head.
func (s *Seats) reserve(expected []Seat) {
	for _, seat := range expected {
		if seat.Index < 0 || seat.Index >= len(s.taken) || s.taken[seat.Index] != nil || seat.RunID == "" {
			continue // the cluster has fewer seats now
		}
		s.taken[seat.Index] = &seated{
			name: seat.Name, node: seat.Node, seat: seat.Index, runID: seat.RunID, returned: true,
			change: hostnet.Change{Index: s.members.Size() + seat.Index, Name: seat.Node},
		}
	}
}

// forgetAbsent frees the seats of the nodes that have not returned in time. Their pods start
// elsewhere.
func (s *Seats) forgetAbsent(ctx context.Context) {
	select {
	case <-time.After(returnSeatLimit):
		s.giveUpAbsent(ctx)
	case <-ctx.Done():
	}
}

func (s *Seats) giveUpAbsent(ctx context.Context) {
	s.mu.Lock()
	s.late = true
	var late []*seated
	for _, n := range s.taken {
		if n != nil && n.absent() {
			n.left = true
			late = append(late, n)
		}
	}
	s.mu.Unlock()
	for _, n := range late {
		go func() {
			err := fmt.Errorf("node %s has not come back within %s to the node that leads the cluster now", n.node, returnSeatLimit)
			s.members.log.Warn(fmt.Sprintf("%v; its pods start elsewhere", err))
			s.leave(ctx, n, err)
		}()
	}
}

// seatAgain takes a node back that the previous head had. The node keeps its plan, keys and pods.
func (s *Seats) seatAgain(ctx context.Context, n *seated, said hello) error {
	switch {
	case n.runID == "":
		return errUnknownSeat
	case !said.Returning || said.Offer.RunID != n.runID:
		return fmt.Errorf("node %s was another process under the previous head; its seat is free in a moment", n.name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.announce(n, said, s.members.Size()+n.seat); err != nil {
		return err
	}
	return n.peer.Send(ctx, Welcome{Version: cluster.Version(), Changes: s.changesFor(n)})
}

// mayTryAgain keeps the seat of a node that returns and whose connection has broken with err
// before it was in the seat, and reports whether it did.
func (s *Seats) mayTryAgain(n *seated, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.late || n.known || !n.returned || !errors.As(err, new(*rendezvous.LostError)) {
		return false
	}
	n.peer = nil
	return true
}

// changesFor returns the other places as a returning node must know them. It omits nodes that have
// not returned yet: their sockets are as they were. The caller holds mu.
func (s *Seats) changesFor(n *seated) []hostnet.Change {
	size := s.members.Size()
	all := s.members.emptySeats()
	for _, node := range s.members.endOf(size+n.seat, n.peer).Nodes {
		if node.Index < size {
			all = append(all, node)
		} else {
			all[node.Index-size] = node
		}
	}
	return slices.DeleteFunc(all, func(change hostnet.Change) bool {
		seat := change.Index - size
		return seat == n.seat || seat >= 0 && s.taken[seat] != nil && s.taken[seat].absent()
	})
}

// Seats returns the nodes in seats, as the next head of the cluster needs them.
func (m *Members) Seats() (all []Seat) {
	s := m.getSeats()
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.taken {
		if n != nil && (n.known || n.absent()) {
			all = append(all, Seat{n.seat, n.name, n.node, n.runID})
		}
	}
	return all
}
