package members

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
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
		config: rendezvous.Config{
			Step: rendezvous.Step{Job: "test-succession"}, Nodes: []string{"n1", "n2", "n3", "n4"}, Node: node,
			Bind: loopback, Prover: prover,
			Addresses: func(context.Context, string) ([]netip.Addr, error) { return []netip.Addr{loopback}, nil },
		},
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
