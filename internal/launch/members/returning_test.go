package members

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/testutil"
)

// next returns the head of the same cluster after the job was requeued on another host. It has
// not opened its seats yet.
func (s *seatTest) next(expected []Seat) *seatTest {
	step := s.head.Step()
	step.Attempt++
	next := prepareSeatTest(s.TB, "n9", 2, step, s.config.Prover, s.queue)
	next.config.Expected = expected
	return next
}

// lasting is a node of another job that may return. heads receives the next head.
type lasting struct {
	*Members
	heads chan *seatTest
	ended chan error
}

// joinLasting lets a node take a seat that it keeps when the head moves.
func (s *seatTest) joinLasting(host, job string) *lasting {
	s.Helper()
	p := &lasting{s.pilot(host, job), make(chan *seatTest, 1), make(chan error, 1)}
	p.back.wait = long
	p.back.again = func(ctx context.Context) (PilotConfig, error) {
		select {
		case next := <-p.heads:
			p.heads <- next
			return PilotConfig{
				Join: next.config.Join, Head: next.head.Name(), Host: host, Job: job, Prover: next.config.Prover, Ports: headPorts,
				Addresses: p.config.Addresses,
			}, nil
		case <-ctx.Done():
			return PilotConfig{}, context.Cause(ctx)
		}
	}
	_, err := p.Meet(s.Context())
	if err == nil {
		_, err = p.Join(s.Context(), cluster.Offer{Host: p.Name(), RunID: "run of " + p.Name()}, 1)
	}
	if err != nil {
		s.Fatal(err)
	}
	go func() {
		p.ended <- p.Follow(s.Context(), "run of "+p.Name(), func(ImportRequest, func(error)) {})
	}()
	return p
}

// lastingTest returns a head whose nodes may return.
func lastingTest(t *testing.T, queue ...slurm.Queued) *seatTest {
	s := newSeatTest(t, queue...)
	s.head.seats.Returns = true
	return s
}

func TestNodesReturnToTheNextHead(t *testing.T) {
	for name, leave := range map[string]func(*Members){"moved": (*Members).Move, "lost": (*Members).Drop} {
		t.Run(name, func(t *testing.T) {
			s := lastingTest(t, running("57", "n2"), running("58", "n3"))
			first, second := s.joinLasting("n2", "57"), s.joinLasting("n3", "58")
			s.knows(first.Members, 2, 1)
			expected := s.head.Seats()
			if len(expected) != 2 || expected[1] != (Seat{1, "n3-58", "n3-58", "run of n3-58"}) {
				t.Fatalf("the next head would expect %+v", expected)
			}
			if name == "lost" {
				for _, n := range s.head.seats.taken {
					n.peer.Drop()
				}
			}
			leave(s.head)

			next := s.next(expected)
			next.open()
			// All seats are taken, also before their nodes are back.
			next.queue = append(next.queue, running("59", "n4"))
			wantText(t, next.refusal("n4", "59"), "all seats of the cluster are taken (2)")

			first.heads <- next
			next.knows(next.head, 1, 1)
			testutil.Eventually(t, "the first node knows the new head", func() bool { return first.places.Current().Nodes[0].Name == "n9" })
			// The second node is not back, but its sockets are as before.
			next.knows(first.Members, 2, 1)
			second.heads <- next
			next.knows(next.head, 2, 1)
			testutil.Eventually(t, "both are in their seats", func() bool { return len(next.head.seats.connections()) == 2 })
			if got := fmt.Sprint(next.head.Seats()); got != fmt.Sprint(expected) {
				t.Errorf("the next head has %s in seats, want %v", got, expected)
			}
			if next.called("retire n2-57") || next.called("retire n3-58") {
				t.Errorf("a node that returns is deleted: %v", next.calls)
			}
			// They leave as from the first head.
			if err := first.RequestLeave(t.Context(), time.Second); err != nil {
				t.Fatal(err)
			}
			if err := <-first.ended; !EndsInOrder(err) {
				t.Errorf("the node that leaves ends with %v", err)
			}
			next.knows(second.Members, 1, 0)
		})
	}
}

func TestNodeThatDoesNotReturnLosesItsSeat(t *testing.T) {
	s := lastingTest(t, running("57", "n2"), running("58", "n3"))
	back, gone := s.joinLasting("n2", "57"), s.joinLasting("n3", "58")
	s.knows(back.Members, 2, 1)
	expected := s.head.Seats()
	gone.Drop()
	s.head.Move()
	next := s.next(expected)
	next.open()
	back.heads <- next
	next.knows(next.head, 1, 1)
	next.head.seats.giveUpAbsent(t.Context())
	testutil.Eventually(t, "the node that is not back is deleted", func() bool { return next.called("retire n3-58") })
	testutil.Eventually(t, "its seat is free", func() bool { return next.seatIsFree(1) })
	next.knows(back.Members, 2, 0)
	if next.called("retire n2-57") {
		t.Errorf("the node that is back is deleted: %v", next.calls)
	}
}

// Only the process that had the seat gets it again, and only with the proofs of a new node.
func TestSeatOfThePreviousHeadIsNotGivenToOthers(t *testing.T) {
	others := running("60", "n4")
	others.UID = 1001
	s := lastingTest(t, running("57", "n2"), running("58", "n3"))
	p, _ := s.joinLasting("n2", "57"), s.joinLasting("n3", "58")
	expected := s.head.Seats()
	s.head.Move()
	expected[1] = Seat{1, "n4-60", "n4-60", "run of n4-60"}
	s.queue = append(s.queue, others)
	next := s.next(expected)
	next.open()
	wantText(t, next.refusal("n4", "60"), "job 60 belongs to user 1001")
	wantText(t, next.refusal("n3", "58"), "all seats of the cluster are taken")
	t.Run("a claim for the previous head", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		late := next.pilot("n2", "57")
		late.config.Step.Attempt--
		late.config.Log = testutil.OnError("belongs to step", cancel)
		_, err := late.Meet(ctx)
		wantText(t, err, "belongs to step")
	})
	t.Run("another process of the job", func(t *testing.T) {
		other := next.pilot("n2", "57")
		if _, err := other.Meet(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := other.introduce(t.Context(), hello{Version: cluster.Version(), Returning: true, Offer: cluster.Offer{RunID: "run of another"}})
		wantText(t, err, "another process under the previous head")
		testutil.Eventually(t, "the node of the lost process is deleted", func() bool { return next.called("retire n2-57") && next.seatIsFree(0) })
	})
	// The process that had the seat comes too late.
	p.heads <- next
	wantText(t, <-p.ended, errUnknownSeat.Error())
}

// A node whose connection breaks while it returns may try again.
func TestNodeMayTryAgainToReturn(t *testing.T) {
	s := lastingTest(t, running("57", "n2"))
	p := s.joinLasting("n2", "57")
	expected := s.head.Seats()
	s.head.Move()
	next := s.next(expected)
	next.open()
	broken := next.pilot("n2", "57")
	if _, err := broken.Meet(t.Context()); err != nil {
		t.Fatal(err)
	}
	broken.Drop()
	p.heads <- next
	next.knows(next.head, 1, 1)
	if next.called("retire n2-57") {
		t.Errorf("the node is deleted: %v", next.calls)
	}
}

func TestNodeEndsWithoutNextHead(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*lasting)
		leave  func(*Members)
		words  string
	}{
		"the cluster has ended":      {func(*lasting) {}, func(m *Members) { m.Leave(RunEnded) }, RunEnded},
		"nothing is saved":           {func(p *lasting) { p.back.expected = false }, (*Members).Move, headMoves},
		"nobody wants to wait":       {func(p *lasting) { p.back.wait = 0 }, (*Members).Move, headMoves},
		"there is no head in time":   {func(p *lasting) { p.back.wait = time.Millisecond }, (*Members).Move, "(--head-wait)"},
		"the job does not come back": {func(p *lasting) { p.back.again = over }, (*Members).Move, "job 12 is CANCELLED"},
	} {
		t.Run(name, func(t *testing.T) {
			s := lastingTest(t, running("57", "n2"))
			p := s.joinLasting("n2", "57")
			test.change(p)
			test.leave(s.head)
			err := <-p.ended
			wantText(t, err, test.words)
			if EndsInOrder(err) != (test.words == RunEnded) {
				t.Errorf("it ends in order: %v", EndsInOrder(err))
			}
		})
	}
}

func over(context.Context) (PilotConfig, error) {
	return PilotConfig{}, fmt.Errorf("job 12 is CANCELLED: %w", ErrClusterOver)
}

func TestHeadIsAway(t *testing.T) {
	for _, test := range []struct {
		err  error
		want bool
	}{
		{&rendezvous.ClosedError{Reason: headMoves}, true},
		{&rendezvous.ClosedError{Reason: headMoves, Here: true}, false},
		{&rendezvous.ClosedError{Reason: RunEnded}, false},
		{fmt.Errorf("x: %w", &rendezvous.LostError{}), true},
		{errors.New("x"), false},
	} {
		if got := headIsAway(test.err); got != test.want {
			t.Errorf("%v: %v", test.err, got)
		}
	}
}
