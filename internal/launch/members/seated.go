package members

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
)

// errLeft is the reason why a node of another job has left in order.
var errLeft = errors.New("it has left the cluster")

// follow handles messages of a node until it has left or is lost, and returns why.
func (s *Seats) follow(ctx context.Context, m *Monitor, n *seated) error {
	var draining sync.WaitGroup
	defer draining.Wait()
	following, end := context.WithCancel(ctx)
	defer end()
	leaving := false
	for {
		var status statusMessage
		if err := n.peer.Receive(following, &status); err != nil {
			if leaving && ctx.Err() == nil {
				return errLeft
			}
			return err
		}
		if status.Report != nil {
			m.importRequests.deliver(n.name, *status.Report)
		}
		if status.Ready {
			n.archives.Close()
			if s.Seated != nil {
				s.Seated()
			}
		}
		if status.Leaving != nil && !leaving {
			leaving = true
			draining.Go(func() {
				defer end()
				s.drain(following, m, n, *status.Leaving)
			})
		}
	}
}

// drain asks the pods of a node to end within grace, and waits for them until ctx ends.
func (s *Seats) drain(ctx context.Context, m *Monitor, n *seated, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	if err := s.Reporter.Drain(ctx, n.node, grace); err != nil && ctx.Err() == nil {
		m.log.Warn(fmt.Sprintf("the pods of node %s cannot be asked to end: %v", n.node, err))
	}
}

// leave frees the seat of a node that has left or is lost. Its pods start elsewhere, and
// its Node object is deleted.
func (s *Seats) leave(ctx context.Context, n *seated, why error) {
	n.archives.Close()
	log := s.members.log
	if n.known && ctx.Err() == nil {
		if errors.As(why, new(*rendezvous.LostError)) {
			log.Warn(fmt.Sprintf("%v; its pods start elsewhere", why))
		} else {
			log.Info(fmt.Sprintf("node %s has left the cluster", n.node))
		}
	}
	s.retire(ctx, n, why)
	s.mu.Lock()
	if n.known || n.left { // the others may know the place of a node that has not returned
		n.known = false
		s.tell(n, hostnet.Change{Index: n.change.Index, Name: n.change.Name})
	}
	reason := why.Error()
	if ctx.Err() != nil {
		reason = s.farewell
	}
	s.mu.Unlock()
	if n.peer != nil {
		n.peer.Close(reason)
	}
	s.retire(ctx, n, why) // the kubelet may have registered the node meanwhile
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[n.seat] = nil
	s.watchLate(ctx, n, why, lateRegistration)
}

// lateRegistration is the time after which a node that has lost its seat is deleted again. The time
// doubles, up to longestRegistration, while the job of the node runs.
const lateRegistration, longestRegistration = 30 * time.Second, 10 * time.Minute

// late is a node without a seat that is deleted again. back ends that, and over is closed when no
// deletion runs any more.
type late struct {
	back context.CancelFunc
	over chan struct{}
}

// watchLate starts retireLate for a node, unless it never had a name. The caller holds mu.
func (s *Seats) watchLate(ctx context.Context, n *seated, why error, after time.Duration) {
	if n.node == "" {
		return
	}
	away, back := context.WithCancel(ctx)
	watched := &late{back, make(chan struct{})}
	s.away[n.node] = watched
	go func() {
		defer close(watched.over)
		defer back()
		s.retireLate(ctx, away, n, why, after)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.away, n.node)
	}()
}

// awaitName returns when no deletion of a node runs or comes: it would delete the next node of that
// name. The caller holds mu.
func (s *Seats) awaitName(ctx context.Context, node string) error {
	for watched := s.away[node]; watched != nil; watched = s.away[node] {
		watched.back()
		s.mu.Unlock()
		select {
		case <-watched.over:
		case <-ctx.Done():
		}
		s.mu.Lock()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// retireLate deletes a node again, and repeats that until its job has ended, or away ends. A
// kubelet may register its node when the seat is free already: a process that was stopped, for
// example, continues at any time.
func (s *Seats) retireLate(ctx, away context.Context, n *seated, why error, after time.Duration) {
	for ended := false; !ended; after = min(2*after, longestRegistration) {
		since := time.Now()
		select {
		case <-time.After(after):
		case <-away.Done():
			return
		}
		ended = s.jobHasEnded(away, n, since) // before the last deletion
		if away.Err() != nil {
			return
		}
		s.retire(ctx, n, why)
	}
}

// jobHasEnded reports whether the job of a node is not in Slurm's queue, according to an answer
// from after a time. If Slurm does not answer, the job may be there.
func (s *Seats) jobHasEnded(ctx context.Context, n *seated, since time.Time) bool {
	_, id, err := parseSeated(n.name)
	if err == nil {
		_, err = s.queue.findSince(ctx, id, since)
	}
	return rendezvous.IsFinal(err)
}

// retire deletes a node from the API, if it has a name there.
func (s *Seats) retire(ctx context.Context, n *seated, why error) {
	if n.node == "" || ctx.Err() != nil {
		return
	}
	if err := s.Reporter.Retire(ctx, n.node, why.Error()); err != nil && ctx.Err() == nil {
		s.members.log.Warn(err.Error())
	}
}

// tell makes a change of a node's seat here, and soon on all other nodes. The caller holds mu.
func (s *Seats) tell(n *seated, change hostnet.Change) {
	n.change = change
	s.members.applyChanges([]hostnet.Change{change})
	s.spread.add(change)
}

// seated returns the connections to the nodes in seats that have their plans. The caller
// holds mu.
func (s *Seats) seated() (all []connection) {
	for _, n := range s.taken {
		if n != nil && n.known {
			all = append(all, connection{n.name, n.peer})
		}
	}
	return all
}

// connections is like seated for callers that do not hold mu. It may be called on nil.
func (s *Seats) connections() []connection {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seated()
}

// welcomeBack answers a node of the step that returns, with all seats. It may be called on
// nil.
func (s *Seats) welcomeBack(ctx context.Context, peer *rendezvous.Peer) error {
	welcome := Welcome{Version: cluster.Version()}
	if s == nil {
		return peer.Send(ctx, welcome)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	welcome.Changes = s.members.emptySeats()
	for _, n := range s.taken {
		if n != nil && n.known {
			welcome.Changes[n.seat] = n.change
		}
	}
	return peer.Send(ctx, welcome)
}

// emptySeats returns a change for each seat, as if nobody had it.
func (m *Members) emptySeats() []hostnet.Change {
	var all []hostnet.Change
	for i := len(m.config.Nodes); i < m.places.Size(); i++ {
		all = append(all, hostnet.Change{Index: i})
	}
	return all
}

// close ends the seats and the connections to the nodes in them, with a reason. It may be called
// on nil.
func (s *Seats) close(reason string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	s.farewell = reason
	var peers []*rendezvous.Peer
	for _, n := range s.taken {
		if n != nil && n.peer != nil {
			peers = append(peers, n.peer)
		}
	}
	s.mu.Unlock()
	s.end()
	s.listener.Close()
	var leaving sync.WaitGroup
	for _, peer := range peers {
		leaving.Go(func() { peer.Close(reason) })
	}
	leaving.Wait()
}
