package rendezvous

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// headOf returns a fake head. It proves a modified claim, and sends nothing else.
func headOf(t *testing.T, secrets *tls.Config, prover Prover, change func(*Claim)) func(net.Conn) {
	return func(raw net.Conn) {
		conn := tls.Server(raw, secrets)
		binding, err := secure(t.Context(), conn)
		if err != nil {
			return
		}
		claim := Claim{Protocol: protocol, Role: RoleHead, Step: Step{}, Node: "n1", Binding: binding}
		change(&claim)
		proof, err := prover.Prove(t.Context(), claim)
		if err != nil {
			if t.Context().Err() == nil {
				t.Error(err)
			}
			return
		}
		conn.Write(frame(frameProof, proof))
		if said, _ := io.ReadAll(conn); len(said) > 0 {
			t.Errorf("the worker told a wrong head %d bytes", len(said))
		}
	}
}

func TestWrongHeads(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Claim)
		words  string
	}{
		"other step":       {func(c *Claim) { c.Step.Step++ }, "belongs to step"},
		"other job":        {func(c *Claim) { c.Step.Job += "0" }, "belongs to step"},
		"earlier attempt":  {func(c *Claim) { c.Step.Attempt = 1 }, "restart 1"},
		"a worker":         {func(c *Claim) { c.Role = RoleWorker }, "that of a worker"},
		"other node":       {func(c *Claim) { c.Node = "n2" }, `it is node "n2"`},
		"other connection": {func(c *Claim) { c.Binding = make([]byte, bindingSize) }, "another connection"},
		"no binding":       {func(c *Claim) { c.Binding = nil }, "another connection"},
		"other version":    {func(c *Claim) { c.Protocol++ }, "use the same one on all nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			of := fixture(t, "n1", "n2")
			cfg := of("n2").withDefaultsOrFail(t)
			secrets, err := serverTLS()
			if err != nil {
				t.Fatal(err)
			}
			occupy(t, cfg.candidates()[0], headOf(t, secrets, cfg.Prover, func(c *Claim) {
				c.Step = cfg.Step
				test.change(c)
			}))
			wantRefused(t, cfg, test.words)
		})
	}
}

func TestWrongWorkers(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3")
	head := startHead(t, of("n1"))
	for name, test := range map[string]struct {
		change func(*Claim)
		words  string
	}{
		"other step":       {func(c *Claim) { c.Step.Step++ }, "belongs to step"},
		"a head":           {func(c *Claim) { c.Role = RoleHead }, "that of a head"},
		"the head's node":  {func(c *Claim) { c.Node = "n1" }, "not one of the nodes of step"},
		"unknown node":     {func(c *Claim) { c.Node = "n9" }, "not one of the nodes of step"},
		"no node":          {func(c *Claim) { c.Node = "" }, "not one of the nodes of step"},
		"other connection": {func(c *Claim) { c.Binding[0] ^= 1 }, "another connection"},
		"other version":    {func(c *Claim) { c.Protocol++ }, "use the same one on all nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, binding := dialUnproven(t, head)
			headProof(t, conn)
			claim := Claim{Protocol: protocol, Role: RoleWorker, Step: of("n1").Step, Node: "n2", Binding: binding}
			test.change(&claim)
			proof, err := of("n1").Prover.Prove(t.Context(), claim)
			if err != nil {
				t.Fatal(err)
			}
			wantWords(t, errors.New(answer(t, conn, proof)), test.words)
		})
	}
	t.Run("reflected", func(t *testing.T) {
		conn, _ := dialUnproven(t, head)
		wantWords(t, errors.New(answer(t, conn, headProof(t, conn))), "that of a head")
	})
	t.Run("replayed", func(t *testing.T) {
		_, earlier := dialUnproven(t, head)
		proof, err := of("n1").Prover.Prove(t.Context(), Claim{Protocol: protocol, Role: RoleWorker, Step: of("n1").Step, Node: "n2", Binding: earlier})
		if err != nil {
			t.Fatal(err)
		}
		conn, _ := dialUnproven(t, head)
		headProof(t, conn)
		wantWords(t, errors.New(answer(t, conn, proof)), "replayed")
	})
	t.Run("other key", func(t *testing.T) {
		conn, binding := dialUnproven(t, head)
		headProof(t, conn)
		proof, err := preShared(t).Prove(t.Context(), Claim{Protocol: protocol, Role: RoleWorker, Step: of("n1").Step, Node: "n2", Binding: binding})
		if err != nil {
			t.Fatal(err)
		}
		wantWords(t, errors.New(answer(t, conn, proof)), "not made with the key")
	})
	t.Run("not of this step", func(t *testing.T) {
		cfg := of("n1")
		cfg.Nodes, cfg.Node = []string{"n1", "n8"}, "n8"
		var refused *refusedError
		if err := refusedWorker(t, cfg, "refuses this node"); !errors.As(err, &refused) {
			t.Errorf("error %v, want a RefusedError at once", err)
		}
	})
	t.Run("oversized", func(t *testing.T) {
		conn, _ := dialUnproven(t, head)
		headProof(t, conn)
		conn.Write([]byte{frameProof, 0xff, 0xff, 0xff, 0xff})
		if said, _ := io.ReadAll(conn); len(said) > 0 {
			t.Errorf("the head answers %q to a frame of 4 GiB", said)
		}
	})
	if err := head.Await(within(t, time.Millisecond), []string{"n2"}); err == nil {
		t.Error("one of the wrong workers got in")
	}
	startWorker(t, of("n2"))
}

// TestManInTheMiddle relays between a worker and the real head, with TLS on both
// sides. A program that has bound a candidate port can do this.
func TestManInTheMiddle(t *testing.T) {
	of := fixture(t, "n1", "n2")
	cfg := of("n2").withDefaultsOrFail(t)
	secrets, err := serverTLS()
	if err != nil {
		t.Fatal(err)
	}
	var sent atomic.Int64
	var head *Head
	ready := make(chan struct{})
	occupy(t, cfg.candidates()[0], func(raw net.Conn) {
		<-ready
		worker := tls.Server(raw, secrets)
		if _, err := secure(t.Context(), worker); err != nil {
			return
		}
		real, err := tls.Dial("tcp", head.listener.Addr().String(), clientTLS())
		if err != nil {
			return
		}
		defer real.Close()
		var running sync.WaitGroup
		running.Go(func() { io.Copy(worker, real) })
		n, _ := io.Copy(real, worker)
		sent.Add(n)
		real.Close()
		running.Wait()
	})
	head = startHead(t, of("n1"))
	close(ready)
	// This worker can reach only the relay.
	cfg.Candidates = 1
	wantRefused(t, cfg, "somebody sits in between")
	if sent.Load() > 0 {
		t.Errorf("the worker told somebody in between %d bytes", sent.Load())
	}
	startWorker(t, of("n2"))
}

func TestAddressesOutsideStep(t *testing.T) {
	of := fixture(t, "n1", "n2")
	var known atomic.Bool
	var asked atomic.Int64
	cfg := of("n1")
	cfg.Addresses = func(_ context.Context, node string) ([]netip.Addr, error) {
		asked.Add(1)
		if !known.Load() {
			return nil, errors.New("name server is away")
		}
		return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}, nil
	}
	head := startHead(t, cfg)
	for range 20 {
		raw, err := net.Dial("tcp", head.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		raw.SetDeadline(time.Now().Add(long))
		if n, err := raw.Read(make([]byte, 1)); n > 0 || err == nil {
			t.Fatalf("a foreign address gets an answer (%v)", err)
		}
	}
	if asked.Load() > 10 {
		t.Errorf("20 connections made the head ask %d times", asked.Load())
	}
	wantWords(t, head.Await(within(t, time.Millisecond), []string{"n2"}), "name server is away")
	known.Store(true)
	startWorker(t, of("n2"))
}

func TestForeignConnectionsDoNotKeepMembersOut(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3")
	cfg := of("n1")
	cfg.MaxPending = 32
	head := startHead(t, cfg)
	// More slow connections than may be pending.
	for range 100 {
		raw, err := net.Dial("tcp", head.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		raw.Write([]byte{22, 3})
	}
	startWorker(t, of("n2"))
	// And a continuous flood of connections.
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for ctx.Err() == nil {
				if raw, err := net.Dial("tcp", head.listener.Addr().String()); err == nil {
					raw.Write([]byte{22, 3})
					raw.Close()
				}
			}
		})
	}
	startWorker(t, of("n3"))
	cancel()
	running.Wait()
	if err := head.Await(within(t, long), []string{"n2", "n3"}); err != nil {
		t.Error(err)
	}
	head.mu.Lock()
	waiting := len(head.pending)
	head.mu.Unlock()
	if waiting > cfg.MaxPending {
		t.Errorf("%d connections wait, at most %d may", waiting, cfg.MaxPending)
	}
}

func TestSlowProcessIsKilled(t *testing.T) {
	of := fixture(t, "n1", "n2")
	cfg := of("n1")
	cfg.Handshake = 200 * time.Millisecond
	head := startHead(t, cfg)
	conn, _ := dialUnproven(t, head)
	headProof(t, conn)
	io.ReadAll(conn) // until the head closes the connection
	eventually(t, "the head tells why", func() bool {
		err := head.Await(within(t, time.Millisecond), []string{"n2"})
		return strings.Contains(err.Error(), "did not prove itself within 200ms")
	})
}
