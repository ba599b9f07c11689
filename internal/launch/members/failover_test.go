package members

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/kube/nodeloss"
)

func testMembers(node string, s *failover) *Members {
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	key := make([]byte, 32)
	prover, err := rendezvous.NewPreShared(key)
	if err != nil {
		panic(err)
	}
	return &Members{
		roster: roster{config: rendezvous.Config{
			Step: rendezvous.Step{Job: "test-succession"}, Nodes: []string{"n1", "n2", "n3", "n4"}, Node: node,
			Bind: loopback, Prover: prover,
			Addresses: func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{loopback}, nil },
		}},
		failover: s, log: slog.New(slog.DiscardHandler), wait: time.Minute,
	}
}

func TestNodesFindSuccessorOfHead(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := newFailover([]cluster.Offer{{RunID: "a"}, {RunID: "b"}, {RunID: "c"}, {RunID: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	successor := testMembers("n3", s)
	config, err := s.config(successor.config, "n3")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := rendezvous.Listen(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, node := range []string{"n2", "n4"} {
		peer, err := testMembers(node, s).findHead(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if peer.Name() != "n3" {
			t.Errorf("node %s found %s", node, peer.Name())
		}
		peer.Drop()
	}
	// A process that is not part of the run has another key.
	foreign, err := newFailover(nil)
	if err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancelShort()
	if peer, err := testMembers("n2", foreign).findHead(short); err == nil {
		t.Errorf("a node with another key was taken in by %s", peer.Name())
	}
}

// A node was cut off, and reaches the head again when it is about to end. The node then
// returns to the successor.
func TestNodeReturnsToSuccessorOfHeadThatEnds(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := newFailover([]cluster.Offer{{RunID: "a"}, {RunID: "b"}, {RunID: "c"}, {RunID: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	head, successor, node := testMembers("n1", s), testMembers("n3", s), testMembers("n2", s)
	node.Moved = func(string) {}
	first, err := rendezvous.Listen(ctx, head.config)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := node.connect(ctx); err != nil {
		t.Fatal(err)
	}
	returned := make(chan error, 1)
	go func() {
		returned <- node.reconnect(ctx, hello{Returning: true}, &rendezvous.LostError{Node: "n1", Cause: io.EOF})
	}()
	// The connection that breaks, and two attempts that this head ends.
	for attempt := range 3 {
		peer, err := first.Accept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if attempt < 2 {
			peer.Drop()
		} else {
			peer.Close("the run has ended")
		}
	}
	first.Close()
	config, err := s.config(successor.config, "n3")
	if err != nil {
		t.Fatal(err)
	}
	second, err := rendezvous.Listen(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	peer, err := second.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Drop()
	if err := peer.Send(ctx, Welcome{}); err != nil {
		t.Fatal(err)
	}
	if err := <-returned; err != nil || node.head().Name() != "n3" {
		t.Errorf("the node follows %s: %v", node.head().Name(), err)
	}
}

func TestRunEndsWithControlPlaneMajority(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	a := &Monitor{
		Members: testMembers("n1", nil), lost: map[string]bool{},
		MonitorConfig: MonitorConfig{
			Reporter: nodeloss.NewReporter(fake.NewSimpleDynamicClient(runtime.NewScheme())), GiveUp: cancel, Replicas: []string{"n1", "n2", "n3"},
		},
	}
	gone := errors.New("gone")
	for _, name := range []string{"n4", "n2"} {
		a.takeOutOfService(ctx, &member{name: name, node: name}, gone)
		if ctx.Err() != nil {
			t.Fatalf("the loss of %s ends the run: %v", name, context.Cause(ctx))
		}
	}
	a.returnToService(ctx, &member{name: "n2", node: "n2"})
	a.takeOutOfService(ctx, &member{name: "n3", node: "n3"}, gone)
	if ctx.Err() != nil {
		t.Fatalf("the loss of a second one ends the run although the first is back: %v", context.Cause(ctx))
	}
	a.takeOutOfService(ctx, &member{name: "n2", node: "n2"}, gone)
	if err := context.Cause(ctx); err == nil || !strings.Contains(err.Error(), "n2 and n3") {
		t.Errorf("without a majority the run goes on, or ends with %v", err)
	}
}

// A head that is cut off ends before it gives up its lease, so that its message names the
// nodes.
func TestSilentMajorityEndsTheRunAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		a := &Monitor{
			Members:       testMembers("n1", nil),
			lost:          map[string]bool{"n2": true},
			MonitorConfig: MonitorConfig{GiveUp: cancel, Replicas: []string{"n1", "n2", "n3"}},
		}
		began := time.Now()
		a.takeOutOfService(ctx, &member{name: "n3", node: "n3"}, &rendezvous.LostError{Cause: syscall.ETIMEDOUT})
		if err := context.Cause(ctx); err == nil || !strings.Contains(err.Error(), "n2 and n3") || time.Since(began) > 0 {
			t.Errorf("after %s the run ends with %v", time.Since(began), err)
		}
	})
}

// silent is an API server that gives no answer before the run ends.
type silent struct{ Reporter }

func (silent) Lose(ctx context.Context, _, _ string) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestLossIsReportedWhileTheAPIServerIsSilent(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	members := testMembers("n1", nil)
	lines, log := io.Pipe()
	members.log = slog.New(slog.NewTextHandler(log, nil))
	monitor := members.newMonitor(MonitorConfig{Reporter: silent{}, GiveUp: cancel})
	done := make(chan struct{})
	go func() {
		defer close(done)
		monitor.takeOutOfService(ctx, &member{name: "n2", node: "n2"}, errors.New("lost node n2"))
	}()
	line, err := bufio.NewReader(lines).ReadString('\n')
	if err != nil || !strings.Contains(line, "lost node n2; the run goes on without the node") {
		t.Errorf("%q, %v", line, err)
	}
	lines.Close()
	cancel(nil)
	<-done
}

// lossRecorder records the nodes that were taken out of service.
type lossRecorder struct {
	Reporter
	lost chan string
}

func (r lossRecorder) Lose(_ context.Context, node, _ string) error {
	r.lost <- node
	return nil
}

// A signal ends the context of the head, which gives the pods time to end. A node that
// is lost meanwhile is taken out of service, or its pods would be awaited.
func TestNodeLostAfterSignalIsTakenOutOfService(t *testing.T) {
	for _, failFast := range []bool{false, true} {
		limited, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		head := testMembers("n1", nil)
		lines, log := io.Pipe()
		head.log = slog.New(slog.NewTextHandler(log, nil))
		var err error
		if head.listener, err = rendezvous.Listen(limited, head.config); err != nil {
			t.Fatal(err)
		}
		other := testMembers("n2", nil)
		joined := make(chan *rendezvous.Peer, 1)
		go func() {
			peer, err := joinHead(limited, other.config)
			if err != nil {
				t.Error(err)
			}
			joined <- peer
		}()
		peer, err := head.listener.Accept(limited)
		if err != nil {
			t.Fatal(err)
		}
		head.others = []*member{{name: "n2", node: "n2", peer: peer, ready: true, returned: make(chan *rendezvous.Peer, 1)}}
		signalled, signal := context.WithCancel(limited)
		reporter := lossRecorder{lost: make(chan string, 1)}
		monitor := head.Monitor(signalled, MonitorConfig{
			Reporter: reporter, FailFast: failFast, Ending: func() bool { return signalled.Err() != nil },
			GiveUp: func(err error) { t.Errorf("the run, which ends, is ended: %v", err) },
		})
		monitor.complete.Store(true)
		signal()
		if of := <-joined; of != nil {
			of.Drop()
		}
		select {
		case node := <-reporter.lost:
			if node != "n2" {
				t.Errorf("node %s is taken out of service", node)
			}
		case <-limited.Done():
			t.Fatalf("fail fast %v: the node stays in service", failFast)
		}
		if line, err := bufio.NewReader(lines).ReadString('\n'); err != nil || !strings.Contains(line, "the workload ends without the node and its pods") {
			t.Errorf("%q, %v", line, err)
		}
		lines.Close()
		head.Leave("the run has ended")
	}
}

// While the run is taken down, nodes that end are not lost.
func TestNodesThatEndAfterTheHeadLeftAreNotLost(t *testing.T) {
	head := testMembers("n1", nil)
	ctx := head.untilLeaving(t.Context())
	if ctx.Err() != nil {
		t.Error("the monitor ends before this node leaves")
	}
	head.Leave("the run has ended")
	if ctx.Err() == nil {
		t.Error("the monitor goes on after this node has left")
	}
}

// A workload may end before the other nodes have found the new head. They learn of the
// end from it, or they would look for a head for a minute.
func TestNodeThatFindsTheNewHeadLateLearnsOfTheEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := newFailover([]cluster.Offer{{RunID: "a"}, {RunID: "b"}, {RunID: "c"}, {RunID: "d"}})
	if err != nil {
		t.Fatal(err)
	}
	plan := cluster.Plan{Index: 1, Members: []cluster.Member{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}, {Name: "n4"}}}
	head := testMembers("n2", s)
	monitor, err := head.BecomeHead(ctx, plan, "n1", MonitorConfig{
		Reporter: silent{}, Replicas: []string{"n1", "n2", "n3"},
		GiveUp: func(err error) { t.Errorf("the run is ended: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	for i, node := range []string{"n3", "n4"} {
		go func() {
			member := testMembers(node, s)
			if err := member.connect(ctx); err != nil {
				ended <- err
				return
			}
			_, err := member.introduce(ctx, hello{Version: cluster.Version(), Offer: cluster.Offer{RunID: s.RunIDs[2+i]}, Returning: true})
			for err == nil {
				var request ImportRequest
				err = member.head().Receive(ctx, &request)
			}
			ended <- err
		}()
	}
	if err := monitor.AwaitExpected(ctx); err != nil {
		t.Error(err)
	}
	head.Leave("the run has ended")
	for range 2 {
		var closed *rendezvous.ClosedError
		if err := <-ended; !errors.As(err, &closed) || closed.Here {
			t.Errorf("a node does not learn of the end: %v", err)
		}
	}
}
