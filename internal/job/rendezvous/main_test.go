package rendezvous

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

var loopback = netip.MustParseAddr("127.0.0.1")

// long bounds the wait for an event that must happen. A passing test never waits
// that long.
const long = 20 * time.Second

// fixture returns the configuration of each node of a step. When the test ends,
// none of its goroutines may remain.
func fixture(t *testing.T, nodes ...string) func(node string) Config {
	t.Helper()
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		eventually(t, "all goroutines end", func() bool { return runtime.NumGoroutine() <= before })
	})
	prover := preShared(t)
	step := Step{Cluster: "test", Job: rand.Text(), Step: 3}
	return func(node string) Config {
		return Config{Step: step, Nodes: nodes, Node: node, Prover: prover, Bind: loopback}
	}
}

func preShared(t *testing.T) *PreShared {
	t.Helper()
	prover, err := NewPreShared([]byte(rand.Text() + rand.Text()))
	if err != nil {
		t.Fatal(err)
	}
	return prover
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ticker, deadline := time.NewTicker(5*time.Millisecond), time.After(long)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-deadline:
			stacks := make([]byte, 1<<16)
			t.Fatalf("it does not come that %s\n%s", what, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

func within(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

func startHead(t *testing.T, cfg Config) *Head {
	t.Helper()
	head, err := Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(head.Close)
	return head
}

func startWorker(t *testing.T, cfg Config) *Peer {
	t.Helper()
	peer, err := Join(within(t, long), cfg, []netip.Addr{loopback})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close("test is over") })
	return peer
}

// refusedWorker returns the error of a worker that must not be accepted. The worker tries
// until an attempt fails with the words, or a refusal is final.
func refusedWorker(t *testing.T, cfg Config, words string) error {
	t.Helper()
	ctx, cancel := context.WithCancel(within(t, long))
	defer cancel()
	cfg.Log = testutil.OnError(words, cancel)
	peer, err := Join(ctx, cfg, []netip.Addr{loopback})
	if err == nil {
		peer.Close("unexpected")
		t.Fatalf("%s joined", cfg.Node)
	}
	return err
}

// wantRefused fails the test unless a worker is refused with these words.
func wantRefused(t *testing.T, cfg Config, words string) {
	t.Helper()
	wantWords(t, refusedWorker(t, cfg, words), words)
}

func accepted(t *testing.T, head *Head) *Peer {
	t.Helper()
	peer, err := head.Accept(within(t, long))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close("test is over") })
	return peer
}

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v, want the words %q", err, word)
		}
	}
}

// occupy listens on a port and passes every connection to serve.
func occupy(t *testing.T, port uint16, serve func(net.Conn)) {
	t.Helper()
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(loopback, port)))
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var conns []net.Conn
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			running.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		listener.Close()
		mu.Lock()
		for _, conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

// dialUnproven connects to the head with TLS, as any program can.
func dialUnproven(t *testing.T, head *Head) (*tls.Conn, []byte) {
	t.Helper()
	raw, err := net.Dial("tcp", head.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	conn := tls.Client(raw, clientTLS())
	binding, err := secure(within(t, long), conn)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetDeadline(time.Now().Add(long))
	return conn, binding
}

// answer sends a proof to the head and returns the text of the refusal.
func answer(t *testing.T, conn *tls.Conn, proof []byte) string {
	t.Helper()
	if _, err := conn.Write(frame(frameProof, proof)); err != nil {
		t.Fatal(err)
	}
	kind, content, err := readFrame(conn, maxReason)
	if err != nil || kind != frameRefusal {
		t.Fatalf("the head answers %q %q (%v), want a refusal", kind, content, err)
	}
	return string(content)
}

// headProof reads the head's first frame.
func headProof(t *testing.T, conn io.Reader) []byte {
	t.Helper()
	kind, content, err := readFrame(conn, maxProof)
	if err != nil || kind != frameProof || bytes.Equal(content, nil) {
		t.Fatalf("the head says %q (%v), want its proof", kind, err)
	}
	return content
}
