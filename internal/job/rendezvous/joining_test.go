package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
)

// joiningFixture returns the configuration of a head that nodes of other jobs may join,
// and of such a node.
func joiningFixture(t *testing.T, admit func(context.Context, string, netip.Addr) error) (head Config, node func(name string) Config) {
	of := fixture(t, "n1")
	head = of("n1")
	head.Step.Joining, head.Admit = true, admit
	return head, func(name string) Config {
		cfg := head
		cfg.Nodes, cfg.Node, cfg.Admit = []string{"n1", name}, name, nil
		return cfg
	}
}

func TestNodesOfOtherJobsJoin(t *testing.T) {
	var from netip.Addr
	cfg, node := joiningFixture(t, func(_ context.Context, _ string, address netip.Addr) error {
		from = address
		return nil
	})
	head := startHead(t, cfg)
	for _, name := range []string{"n2-57", "n3-57"} {
		worker := startWorker(t, node(name))
		peer := accepted(t, head)
		if peer.Name() != name || from != loopback {
			t.Errorf("node %s from %s, want %s from %s", peer.Name(), from, name, loopback)
		}
		var got string
		if err := errors.Join(worker.Send(t.Context(), "hello"), peer.Receive(t.Context(), &got)); err != nil || got != "hello" {
			t.Errorf("%q, %v", got, err)
		}
	}
	wantRefused(t, node("n2-57"), "connected already")
}

// A host has several addresses, and the head may know only one that the route does not select.
func TestNodeJoinsFromAnotherAddress(t *testing.T) {
	known := netip.MustParseAddr("127.0.0.2")
	cfg, node := joiningFixture(t, func(_ context.Context, _ string, address netip.Addr) error {
		if address != known {
			return fmt.Errorf("%s is not an address of the host", address)
		}
		return nil
	})
	head := startHead(t, cfg)
	wantRefused(t, node("n2-57"), "for now: 127.0.0.1 is not an address of the host")
	other := node("n2-57")
	other.From = known
	worker := startWorker(t, other)
	if peer := accepted(t, head); peer.RemoteAddr().String() != worker.LocalAddr().String() || addressOf(peer.RemoteAddr()) != known {
		t.Errorf("the node comes from %s", peer.RemoteAddr())
	}
	// The head is also found where the other address leads nowhere.
	cfg.Admit = func(context.Context, string, netip.Addr) error { return nil }
	cfg.Step.Step++
	head = startHead(t, cfg)
	unused := node("n3-57")
	unused.Step.Step, unused.From = cfg.Step.Step, netip.MustParseAddr("192.0.2.1")
	startWorker(t, unused)
	if peer := accepted(t, head); addressOf(peer.RemoteAddr()) != loopback {
		t.Errorf("the node comes from %s", peer.RemoteAddr())
	}
}

// Connections that prove nothing do not evict a node whose proof is known, however long the
// decision about it takes.
func TestNodeIsNotEvictedDuringTheDecision(t *testing.T) {
	deciding, decided := make(chan struct{}), make(chan struct{})
	cfg, node := joiningFixture(t, func(context.Context, string, netip.Addr) error {
		close(deciding) // a second attempt would panic
		<-decided
		return nil
	})
	cfg.MaxPending = 4
	head := startHead(t, cfg)
	joined := make(chan error, 1)
	go func() {
		peer, err := Join(t.Context(), node("n2-57"), []netip.Addr{loopback})
		if err == nil {
			t.Cleanup(peer.Drop)
		}
		joined <- err
	}()
	<-deciding
	var silent []net.Conn
	for range 8 {
		conn, err := net.Dial("tcp", head.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	for _, conn := range silent[:4] {
		_, _ = conn.Read(make([]byte, 1)) // until it is evicted
	}
	close(decided)
	if err := <-joined; err != nil {
		t.Error(err)
	}
}

func TestHeadDecidesWhoJoins(t *testing.T) {
	asked := 0
	cfg, node := joiningFixture(t, func(_ context.Context, name string, _ netip.Addr) error {
		asked++
		if name == "n2-1" {
			return Final(errors.New("job 1 is not yours"))
		}
		return errors.New("all seats are taken")
	})
	startHead(t, cfg)
	wantRefused(t, node("n2-1"), "refuses this node: job 1 is not yours")
	if asked != 1 {
		t.Errorf("the node asked %d times, although the refusal was final", asked)
	}
	wantRefused(t, node("n2-2"), "for now: all seats are taken")
}

// A credential is valid for one purpose, one start of the job and one step. Without the
// key of the cluster nobody joins.
func TestWrongNodesDoNotJoin(t *testing.T) {
	admitted := false
	cfg, _ := joiningFixture(t, func(context.Context, string, netip.Addr) error { admitted = true; return nil })
	head := startHead(t, cfg)
	for name, test := range map[string]struct {
		change func(*Claim)
		words  string
	}{
		"a node of the step":         {func(c *Claim) { c.Step.Joining = false }, "belongs to step"},
		"an earlier start":           {func(c *Claim) { c.Step.Attempt-- }, "belongs to step"},
		"an earlier cluster, in job": {func(c *Claim) { c.Step.Step-- }, "belongs to step"},
		"another job's cluster":      {func(c *Claim) { c.Step.Job += "0" }, "belongs to step"},
		"a head":                     {func(c *Claim) { c.Role = RoleHead }, "that of a head"},
		"the head's node":            {func(c *Claim) { c.Node = "n1" }, "not one of the nodes"},
		"replayed":                   {func(c *Claim) { c.Binding[0] ^= 1 }, "another connection"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, binding := dialUnproven(t, head)
			headProof(t, conn)
			claim := Claim{Protocol: protocol, Role: RoleWorker, Step: cfg.Step, Node: "n2-57", Binding: binding}
			test.change(&claim)
			proof, err := cfg.Prover.Prove(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			wantWords(t, errors.New(answer(t, conn, proof)), test.words)
		})
	}
	t.Run("another key", func(t *testing.T) {
		conn, binding := dialUnproven(t, head)
		headProof(t, conn)
		proof, err := preShared(t).Prove(t.Context(), Claim{Protocol: protocol, Role: RoleWorker, Step: cfg.Step, Node: "n2-57", Binding: binding})
		if err != nil {
			t.Fatal(err)
		}
		wantWords(t, errors.New(answer(t, conn, proof)), "not made with the key")
	})
	if admitted {
		t.Error("the head decided about a node without a valid credential")
	}
	other := cfg
	other.Step.Joining = false
	if slices.Equal(candidates(other.Step, DefaultPorts(), 8), candidates(cfg.Step, DefaultPorts(), 8)) {
		t.Error("nodes of other jobs come to the ports of the step")
	}
}
