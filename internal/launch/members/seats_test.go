package members

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/node/sandbox"
	"berth.dev/berth/internal/testutil"
)

var loopbackOnly = netip.MustParseAddr("127.0.0.1")

// headPorts holds as many ports as a head has candidates, so each node finds the head, also
// one that looks for another cluster. No other test listens there.
var headPorts = rendezvous.PortRange{First: 20992, Last: 20999}

// seatTest is a head with seats, two in most tests. Slurm's queue is a list, because the test has no Slurm.
type seatTest struct {
	testing.TB
	head    *Members
	monitor *Monitor
	config  SeatsConfig

	mu    sync.Mutex
	queue []slurm.Queued
	calls []string
	asked int // questions about a node
	// drained delays Drain until it is closed, if it is set.
	drained chan struct{}
	// answers delays Retire until it is closed, if it is set.
	answers chan struct{}
}

func (s *seatTest) Drain(ctx context.Context, node string, grace time.Duration) error {
	if s.drained != nil {
		select {
		case <-s.drained:
		case <-ctx.Done():
		}
	}
	return s.note("drain " + node + " " + grace.String())
}

func (s *seatTest) Retire(_ context.Context, node, _ string) error {
	if s.answers != nil {
		_ = s.note("begin to retire " + node)
		<-s.answers
	}
	seats := s.head.seats
	seats.mu.Lock()
	ended := slices.ContainsFunc(seats.taken, func(n *seated) bool { return n != nil && n.node == node && n.peer != nil && n.peer.Err() != nil })
	seats.mu.Unlock()
	if ended {
		_ = s.note("retire disconnected " + node)
	}
	return s.note("retire " + node)
}

func (s *seatTest) note(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, call)
	return nil
}

func (s *seatTest) called(call string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.calls, call)
}

func newSeatTest(t testing.TB, queue ...slurm.Queued) *seatTest {
	return newSeatTestOf(t, 2, queue...)
}

// newSeatTestOf is like newSeatTest with another number of seats.
func newSeatTestOf(t testing.TB, seats int, queue ...slurm.Queued) *seatTest {
	prover, err := rendezvous.NewPreShared([]byte(rand.Text() + rand.Text()))
	if err != nil {
		t.Fatal(err)
	}
	s := prepareSeatTest(t, "n1", seats, rendezvous.Step{Job: rand.Text(), Step: 1}, prover, queue)
	s.open()
	return s
}

func (s *seatTest) open() {
	s.Helper()
	if err := s.monitor.OpenSeats(s.Context(), s.config); err != nil {
		s.Fatal(err)
	}
}

// prepareSeatTest returns a head on a host that has not opened its seats yet.
func prepareSeatTest(t testing.TB, host string, seats int, step rendezvous.Step, prover rendezvous.Prover, queue []slurm.Queued) *seatTest {
	s := &seatTest{TB: t, queue: queue}
	s.head = &Members{
		roster: roster{
			config:  rendezvous.Config{Step: step, Nodes: []string{host}, Node: host, Bind: loopbackOnly, Ports: headPorts},
			elastic: true,
		},
		network: newNetwork(rendezvous.DefaultPorts(), ""), log: slog.New(slog.DiscardHandler),
	}
	s.head.data.Address, s.head.sockets.Ports = loopbackOnly, hostnet.Ports{Packets: []uint16{1}, Streams: 2}
	plans, err := cluster.Design(cluster.Spec{Seats: seats}, []cluster.Offer{{Host: host}})
	if err != nil {
		t.Fatal(err)
	}
	s.head.lay([]byte("key"), plans[0].Places(), nil)
	join := step
	join.Joining = true
	s.config = SeatsConfig{
		Spec: cluster.Spec{Seats: seats, ImageBudget: 7}, Join: join, Prover: prover, UID: 1000, Reporter: s,
		Plan: func(seat int, name string, offer cluster.Offer) (cluster.Plan, map[string]sandbox.File, error) {
			if offer.OneUID {
				return cluster.Plan{}, nil, errors.New("no room for it")
			}
			plan := plans[0]
			plan.Index, plan.Node.Name = 1+seat, name
			return plan, map[string]sandbox.File{"key": {Content: []byte(name)}}, nil
		},
		Jobs: func(context.Context) ([]slurm.Queued, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			return slices.Clone(s.queue), nil
		},
		Addresses: func(_ context.Context, host string) ([]netip.Addr, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.asked++
			if host == "elsewhere" {
				return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
			}
			return []netip.Addr{loopbackOnly}, nil
		},
	}
	s.monitor = s.head.newMonitor(MonitorConfig{})
	t.Cleanup(func() { s.head.Leave("the test is over") })
	return s
}

// pilot returns a node of another job, whose head has not seen it yet.
func (s *seatTest) pilot(host, job string) *Members {
	p := NewPilot(PilotConfig{
		Join: s.config.Join, Head: s.head.Name(), Host: host, Job: job, Prover: s.config.Prover, Ports: rendezvous.DefaultPorts(),
		Addresses: func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{loopbackOnly}, nil },
		Wait:      long, Log: slog.New(slog.DiscardHandler),
	})
	p.config.Ports = headPorts
	s.Cleanup(func() { p.Leave("the test is over") })
	return p
}

// long bounds the wait for something that must happen.
const long = 30 * time.Second

// refusal returns why a node gets no seat. Unless that is final, the node asks again, and
// the test ends its attempts then.
func (s *seatTest) refusal(host, job string) error {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.asked
	}
	first := count() + 2 // Jobs and Addresses
	go func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil && count() <= first {
			<-tick.C
		}
		cancel()
	}()
	_, err := s.pilot(host, job).Meet(ctx)
	return err
}

// join lets a node take a seat. ended receives the error that ends it.
func (s *seatTest) join(host, job string) (p *Members, answer Welcome, ended chan error) {
	s.Helper()
	p = s.pilot(host, job)
	spec, err := p.Meet(s.Context())
	if err == nil {
		answer, err = p.Join(s.Context(), cluster.Offer{Host: p.Name()}, 1)
	}
	if err != nil {
		s.Fatal(err)
	}
	if spec.ImageBudget != 7 {
		s.Errorf("the options of the cluster are %+v", spec)
	}
	ended = make(chan error, 1)
	go func() { ended <- p.Follow(s.Context(), "", func(ImportRequest, func(error)) {}) }()
	return p, answer, ended
}

// BenchmarkNodesJoin measures a head with nodes of other jobs that all come at once, and these
// nodes.
func BenchmarkNodesJoin(b *testing.B) {
	const nodes = 200
	for b.Loop() {
		var queue []slurm.Queued
		for i := range nodes {
			queue = append(queue, running(strconv.Itoa(i+1), "n2"))
		}
		s := newSeatTestOf(b, nodes, queue...)
		var joining sync.WaitGroup
		for _, job := range queue {
			joining.Go(func() { s.join("n2", job.ID) })
		}
		joining.Wait()
		s.head.Leave("the test is over")
	}
}

// knows waits until a node knows a number of addresses of the node in a place.
func (s *seatTest) knows(m *Members, place, endpoints int) {
	s.Helper()
	testutil.Eventually(s, "the node knows the place", func() bool {
		return len(m.places.Current().Nodes[place].Endpoints) == endpoints
	})
}

func (s *seatTest) seatIsFree(seat int) bool {
	s.head.seats.mu.Lock()
	defer s.head.seats.mu.Unlock()
	return s.head.seats.taken[seat] == nil
}

func running(id, hosts string) slurm.Queued {
	return slurm.Queued{ID: id, UID: 1000, State: slurm.Running, NodeList: hosts}
}

func TestNodesOfOtherJobsTakeSeatsAndLeave(t *testing.T) {
	s := newSeatTest(t, running("57", "N_2,n3"), running("58", "n2"))
	first, answer, firstEnded := s.join("N_2", "57")
	if answer.Plan.Node.Name != "n-2-57" || answer.Plan.Index != 1 || string(answer.Files["key"].Content) != "n-2-57" {
		t.Errorf("the answer is for node %s in place %d", answer.Plan.Node.Name, answer.Plan.Index)
	}
	if end := first.places.Current(); end.Self != 1 || end.Nodes[0].Stream.Addr() != loopbackOnly || len(end.Nodes[1].Endpoints) != 1 || end.Nodes[2].Prefixes == nil {
		t.Errorf("it knows the nodes %+v", end)
	}
	s.knows(s.head, 1, 1)
	second, _, _ := s.join("n2", "58")
	if end := second.places.Current(); len(end.Nodes[1].Endpoints) != 1 {
		t.Errorf("the second node does not know the first one: %+v", end)
	}
	s.knows(first, 2, 1)

	wantText(t, s.refusal("n3", "57"), "all seats of the cluster are taken (2)")
	wantText(t, s.refusal("n2", "58"), "has a seat already")

	if err := first.RequestLeave(t.Context(), 5*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := <-firstEnded; !EndsInOrder(err) {
		t.Errorf("the node that leaves ends with %v", err)
	}
	if !s.called("drain n-2-57 5s") || !s.called("retire n-2-57") {
		t.Errorf("calls of the API server: %v", s.calls)
	}
	testutil.Eventually(t, "the node is deleted again, without a connection", func() bool { return s.called("retire disconnected n-2-57") })
	s.knows(s.head, 1, 0)
	s.knows(second, 1, 0)

	// The seat can be taken again, and a node that dies leaves it.
	third, answer, _ := s.join("n3", "57")
	if answer.Plan.Index != 1 || answer.Plan.Node.Name != "n3-57" {
		t.Errorf("the third node is %s in place %d", answer.Plan.Node.Name, answer.Plan.Index)
	}
	s.knows(second, 1, 1)
	third.Drop()
	s.knows(second, 1, 0)
	testutil.Eventually(t, "the dead node is deleted", func() bool { return s.called("retire n3-57") })
	if s.called("drain n3-57 5s") {
		t.Error("a dead node is asked to end its pods")
	}
	s.join("n3", "57") // the same node again
}

// A question to Slurm answers all nodes that came before it.
func TestNodesThatComeAtOnceShareAQuestion(t *testing.T) {
	asked := 0
	r := recentJobs{ask: func(context.Context) ([]slurm.Queued, error) {
		asked++
		return []slurm.Queued{running("57", "n2")}, nil
	}}
	before := time.Now()
	for i, test := range []struct {
		id    string
		came  time.Time
		found bool
		asked int
	}{{"57", before, true, 1}, {"99", before, false, 1}, {"57", time.Now().Add(time.Hour), true, 1}, {"99", time.Now().Add(time.Hour), false, 2}} {
		job, err := r.findSince(t.Context(), test.id, test.came)
		if (err == nil) != test.found || test.found && job.ID != test.id || asked != test.asked {
			t.Errorf("question %d: job %s (%v), %d times asked", i, job.ID, err, asked)
		}
	}
}

// Nodes that wait for one answer share the error, too, and whether a job has ended: each question
// may take long when Slurm does not answer.
func TestNodesThatLeaveShareAQuestion(t *testing.T) {
	asked, away := 0, errors.New("Slurm is away")
	err := away
	s := &Seats{queue: recentJobs{ask: func(context.Context) ([]slurm.Queued, error) {
		asked++
		return nil, err
	}}}
	before := time.Now()
	check := func(what string, since time.Time, ended bool, questions int) {
		t.Helper()
		for _, name := range []string{"n2-57", "n3-58"} {
			if got := s.jobHasEnded(t.Context(), &seated{name: name}, since); got != ended || asked != questions {
				t.Errorf("%s: the job of %s has ended: %t, %d times asked", what, name, got, asked)
			}
		}
	}
	check("Slurm is away", before, false, 1)
	if _, err := s.queue.findSince(t.Context(), "59", before); !errors.Is(err, away) || asked != 1 {
		t.Errorf("a node that has waited: %v, %d times asked", err, asked)
	}
	err = nil
	if _, err := s.queue.find(t.Context(), "59"); !rendezvous.IsFinal(err) || asked != 2 {
		t.Errorf("a node that comes later: %v, %d times asked", err, asked)
	}
	check("Slurm answers", before, true, 2)

	// A question that its node has given up answers nobody.
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	err = context.Canceled
	later := time.Now()
	if s.jobHasEnded(given, &seated{name: "n2-57"}, later) || asked != 3 {
		t.Errorf("a job has ended without an answer, %d times asked", asked)
	}
	err = nil
	check("another node asks", later, true, 4)
}

func TestNodesWithoutRightGetNoSeat(t *testing.T) {
	others := running("60", "n2")
	others.UID = 1001
	pending := running("61", "n2")
	pending.State = slurm.Pending
	s := newSeatTest(t, running("57", "n2,elsewhere"), others, pending)
	for name, test := range map[string]struct{ host, job, words string }{
		"a job that does not exist":    {"n2", "99", "job 99 is not in Slurm's queue"},
		"another user's job":           {"n2", "60", "job 60 belongs to user 1001"},
		"a job that waits":             {"n2", "61", "job 61 is PENDING"},
		"a host that the job lacks":    {"n3", "57", "job 57 does not run on n3"},
		"an address of another host":   {"elsewhere", "57", "127.0.0.1 is not an address of elsewhere"},
		"a name that is not HOST-JOB":  {"n2", "x", "is not HOST-JOB"},
		"the name of a node of a step": {"", "57", "is not HOST-JOB"},
	} {
		t.Run(name, func(t *testing.T) {
			wantText(t, s.refusal(test.host, test.job), test.words)
		})
	}
	// meet lets a node try until an attempt fails with the words.
	meet := func(t *testing.T, words string, change func(*Members)) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := s.pilot("n2", "57")
		p.config.Log = testutil.OnError(words, cancel)
		change(p)
		_, err := p.Meet(ctx)
		wantText(t, err, words)
	}
	t.Run("a pilot of an older cluster in the job", func(t *testing.T) {
		meet(t, "belongs to step", func(p *Members) { p.config.Step.Step-- })
	})
	t.Run("without the key", func(t *testing.T) {
		other, err := rendezvous.NewPreShared([]byte(rand.Text() + rand.Text()))
		if err != nil {
			t.Fatal(err)
		}
		meet(t, "not made with the key", func(p *Members) { p.config.Prover = other })
	})
	if len(s.calls) > 0 || slices.ContainsFunc(s.head.seats.taken, func(n *seated) bool { return n != nil }) {
		t.Errorf("a refused node has a seat, or is in the API: %v", s.calls)
	}
}

// A node whose offer does not fit leaves the seat again, with the reason.
func TestNodeThatDoesNotFitLeavesTheSeat(t *testing.T) {
	s := newSeatTest(t, running("57", "n2"))
	p := s.pilot("n2", "57")
	if _, err := p.Meet(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := p.Join(t.Context(), cluster.Offer{OneUID: true}, 1)
	wantText(t, err, "no room for it")
	if EndsInOrder(err) {
		t.Error("a refused node ends in order")
	}
	testutil.Eventually(t, "the seat is free", func() bool { return s.seatIsFree(0) })
	s.knows(s.head, 1, 0)
}

// Two nodes never have one name in Kubernetes: the end of one would delete the other.
func TestNameInUseIsRefused(t *testing.T) {
	s := newSeatTest(t, running("57", "N_2,n-2,n1"))
	plans, err := cluster.Design(cluster.Spec{Seats: 2}, []cluster.Offer{{Host: "n1-57"}}) // a host of the step
	if err != nil {
		t.Fatal(err)
	}
	s.head.lay([]byte("key"), plans[0].Places(), nil)
	first, _, _ := s.join("N_2", "57")
	for _, host := range []string{"n-2", "n1"} {
		p := s.pilot(host, "57")
		if _, err := p.Meet(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := p.Join(t.Context(), cluster.Offer{}, 1)
		wantText(t, err, "the cluster has another node "+cluster.SeatName(host, "57"))
		testutil.Eventually(t, "the seat is free", func() bool { return s.seatIsFree(1) })
	}
	if s.called("retire n-2-57") || s.called("retire n1-57") || first.head().Err() != nil {
		t.Errorf("a node that lives is deleted: %v", s.calls)
	}
}

// A run that brings images does not wait until a node that leaves has no pods.
func TestNodeThatLeavesReportsImports(t *testing.T) {
	s := newSeatTest(t, running("57", "n2"))
	s.drained = make(chan struct{})
	p, _, ended := s.join("n2", "57")
	if err := p.RequestLeave(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	m := s.monitor
	answer := make(chan report, 1)
	m.importRequests.mu.Lock()
	m.importRequests.open = map[string]chan report{"n2-57": answer}
	m.importRequests.mu.Unlock()
	if err := p.head().Send(t.Context(), statusMessage{Report: &report{}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-answer:
	case <-time.After(long):
		t.Error("a report is not read while the pods of the node end")
	}
	close(s.drained)
	if err := <-ended; !EndsInOrder(err) {
		t.Errorf("the node ends with %v", err)
	}
}

// A node that the others cannot reach takes no seat. The others receive no change.
func TestNodeWithUnusableAddressTakesNoSeat(t *testing.T) {
	s := newSeatTest(t, running("57", "n2,n3"))
	s.join("n2", "57")
	for name, test := range map[string]struct {
		change func(*hello)
		words  string
	}{
		"another family": {func(h *hello) { h.Address = netip.MustParseAddr("fd00::1") }, "all nodes need IPv4 addresses"},
		"no port":        {func(h *hello) { h.Ports.Packets = []uint16{0} }, "not an address with a port"},
		"no ports":       {func(h *hello) { h.Ports.Packets = nil }, "offers no port"},
		"a node's port": {func(h *hello) {
			h.Ports.Packets = []uint16{s.head.places.Current().Nodes[1].Endpoints[0].Port()}
		}, "an address of node n2-57"},
	} {
		t.Run(name, func(t *testing.T) {
			p := s.pilot("n3", "57")
			if _, err := p.Meet(t.Context()); err != nil {
				t.Fatal(err)
			}
			said := hello{Version: cluster.Version(), Ports: hostnet.Ports{Packets: []uint16{22000}, Streams: 22001}}
			test.change(&said)
			_, err := p.introduce(t.Context(), said)
			wantText(t, err, test.words)
			s.knows(s.head, 2, 0)
			testutil.Eventually(t, "the seat is free", func() bool { return len(s.head.seats.connections()) == 1 && s.seatIsFree(1) })
		})
	}
}

// A kubelet may register its node after the seat is free, as long as its job runs.
func TestLateRegistrationIsDeleted(t *testing.T) {
	s := newSeatTest(t, running("57", "n2,n3"))
	gone := errors.New("gone")
	s.head.seats.retireLate(t.Context(), t.Context(), &seated{name: "n3-56", node: "n3-56"}, gone, time.Millisecond)
	deleted := func(node string) (times int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, call := range s.calls {
			if call == "retire "+node {
				times++
			}
		}
		return times
	}
	if times := deleted("n3-56"); times != 1 {
		t.Errorf("the node of a job that has ended is deleted %d times, want once", times)
	}
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.head.seats.retireLate(watching, watching, &seated{name: "n3-57", node: "n3-57"}, gone, time.Millisecond)
	}()
	testutil.Eventually(t, "a node is deleted as long as its job runs", func() bool { return deleted("n3-57") > 2 })
	stop()
	<-over
}

// A node gets its name when no deletion of its predecessor can delete it: the API server may take
// long to answer.
func TestNodeThatIsBackIsNotDeleted(t *testing.T) {
	s := newSeatTest(t, running("57", "n2"))
	s.answers = make(chan struct{})
	seats, gone := s.head.seats, errors.New("gone")
	seats.mu.Lock()
	seats.watchLate(t.Context(), &seated{name: "n2-57", node: "n2-57"}, gone, time.Millisecond)
	seats.watchLate(t.Context(), &seated{name: "n2-57"}, gone, time.Millisecond) // it never had a name
	if len(seats.away) != 1 {
		t.Errorf("%d nodes are watched, want 1", len(seats.away))
	}
	watched := seats.away["n2-57"]
	end := watched.back
	watched.back = func() {
		end()
		if !s.called("begin to retire n2-57") || s.called("retire n2-57") {
			t.Error("the node comes before its predecessor is being deleted, or later")
		}
		for _, n := range seats.taken { // mu is held
			if n != nil && n.node != "" {
				t.Error("the node has its name while its predecessor is being deleted")
			}
		}
		close(s.answers)
	}
	seats.mu.Unlock()
	testutil.Eventually(t, "the node is being deleted", func() bool { return s.called("begin to retire n2-57") })
	s.join("n2", "57")
	if !s.called("retire n2-57") {
		t.Error("the node has its name before its predecessor is deleted")
	}
	seats.mu.Lock()
	defer seats.mu.Unlock()
	if len(seats.away) > 0 {
		t.Error("a node that is back is deleted again")
	}
}

// A node of the step that returns learns of all seats.
func TestReturningNodeLearnsTheSeats(t *testing.T) {
	s := newSeatTest(t, running("57", "n2"), running("58", "n3"))
	s.join("n2", "57")
	other, _, _ := s.join("n3", "58") // stands in for a node of the step
	stale := hostnet.NewPlaces(s.head.places.View(2), make([][]netip.Prefix, 3))
	if err := stale.Apply(hostnet.Change{Index: 1}); err != nil {
		t.Fatal(err)
	}
	other.places = stale
	if err := s.head.seats.welcomeBack(t.Context(), s.head.seats.taken[1].peer); err != nil {
		t.Fatal(err)
	}
	s.knows(other, 1, 1)
}

func wantText(t *testing.T, err error, words string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), words) {
		t.Errorf("error %v, want %q", err, words)
	}
}
