package rendezvous

import (
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

func TestProcessDies(t *testing.T) {
	of := fixture(t, "n1", "n2")
	head := startHead(t, of("n1"))
	worker, atHead := startWorker(t, of("n2")), accepted(t, head)
	if err := worker.Send(t.Context(), "the last words"); err != nil {
		t.Fatal(err)
	}
	// The kernel does the same for a killed process.
	worker.conn.NetConn().Close()
	var text string
	if err := atHead.Receive(within(t, long), &text); err != nil || text != "the last words" {
		t.Fatalf("received %q (%v)", text, err)
	}
	var lost *LostError
	if err := atHead.Receive(within(t, long), &text); !errors.As(err, &lost) || lost.Node != "n2" {
		t.Errorf("the head sees %v, want that n2 is lost", err)
	}
	eventually(t, "the head tells how the node left", func() bool {
		err := head.Await(within(t, 10*time.Millisecond), []string{"n2"})
		return err != nil && strings.Contains(err.Error(), "n2: it came, but then: lost node n2")
	})
	// The node may join again.
	startWorker(t, of("n2"))
	accepted(t, head)
}

// TestNetworkDies connects two nodes through a relay. At some time the relay
// stops forwarding, but keeps its connections open.
func TestNetworkDies(t *testing.T) {
	of := fixture(t, "n1", "n2")
	quick := func(node string) Config {
		cfg := of(node)
		cfg.Loss = time.Second
		return cfg
	}
	worker := quick("n2").withDefaultsOrFail(t)
	elsewhere := netip.MustParseAddr("127.0.0.2")
	cfg := quick("n1")
	cfg.Bind = elsewhere
	head := startHead(t, cfg)
	var dead atomic.Bool
	ports := worker.candidates()
	occupy(t, ports[0], func(from net.Conn) {
		to, err := net.Dial("tcp", netip.AddrPortFrom(elsewhere, ports[0]).String())
		if err != nil {
			t.Error(err)
			return
		}
		var running sync.WaitGroup
		pass := func(into, from net.Conn) {
			buffer := make([]byte, 1<<16)
			for {
				n, err := from.Read(buffer)
				if err != nil {
					if !dead.Load() {
						into.Close()
					}
					return
				}
				if !dead.Load() {
					into.Write(buffer[:n])
				}
			}
		}
		running.Go(func() { pass(to, from) })
		pass(from, to)
		from.Close()
		running.Wait()
		to.Close()
	})
	atWorker, atHead := startWorker(t, worker), accepted(t, head)
	// An idle connection stays open for longer than Loss.
	select {
	case <-time.After(2 * cfg.Loss):
	case <-atWorker.Done():
		t.Fatalf("the worker gave up a peer that lives: %v", atWorker.Err())
	case <-atHead.Done():
		t.Fatalf("the head gave up a peer that lives: %v", atHead.Err())
	}
	dead.Store(true)
	for _, peer := range []*Peer{atWorker, atHead} {
		var text string
		err := peer.Receive(within(t, long), &text)
		if !errors.As(err, new(*LostError)) {
			t.Errorf("the peer of %s sees %v, want a LostError", peer.Name(), err)
		}
	}
	silent := func(err error) bool { lost := &LostError{}; return errors.As(err, &lost) && lost.Silent() }
	if !silent(atHead.Err()) && !silent(atWorker.Err()) {
		t.Errorf("nobody noticed the silence: %v, %v", atHead.Err(), atWorker.Err())
	}
}

func TestPeerBreaksProtocol(t *testing.T) {
	of := fixture(t, "n1", "n2")
	head := startHead(t, of("n1"))
	worker, atHead := startWorker(t, of("n2")), accepted(t, head)
	worker.conn.Write(frame('?', nil))
	var text string
	wantWords(t, atHead.Receive(within(t, long), &text), "unknown kind")
}

func TestHeadEnds(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3")
	head := startHead(t, of("n1"))
	known := startWorker(t, of("n2"))
	kept := accepted(t, head)
	unknown := startWorker(t, of("n3"))
	if err := head.Await(within(t, long), []string{"n3"}); err != nil {
		t.Fatal(err)
	}
	conn, _ := dialUnproven(t, head)
	headProof(t, conn)
	head.Close()
	head.Close()
	if said, _ := io.ReadAll(conn); len(said) > 0 {
		t.Errorf("an unproven client is told %q", said)
	}
	var text string
	var closed *ClosedError
	if err := unknown.Receive(within(t, long), &text); !errors.As(err, &closed) {
		t.Errorf("a node that nobody accepted sees %v", err)
	}
	if err := kept.Send(t.Context(), "still here"); err != nil {
		t.Error(err)
	}
	if err := known.Receive(within(t, long), &text); err != nil || text != "still here" {
		t.Errorf("received %q (%v)", text, err)
	}
	if _, err := head.Accept(t.Context()); !errors.Is(err, errHeadClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	if _, err := net.Dial("tcp", head.listener.Addr().String()); err == nil {
		t.Error("the port is still open")
	}
}
