package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

type note struct {
	Text   string
	Number int
}

func TestNodesMeetAndExchangeMessages(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3", "n4")
	// The workers start before their head.
	joined := make(chan *Peer)
	for _, node := range []string{"n2", "n3", "n4"} {
		go func() {
			peer, err := Join(within(t, long), of(node), []netip.Addr{loopback})
			if err != nil {
				t.Error(err)
			}
			joined <- peer
		}()
	}
	head := startHead(t, of("n1"))
	if err := head.Await(within(t, long), []string{"n2", "n3", "n4"}); err != nil {
		t.Fatal(err)
	}
	atHead, atWorker := map[string]*Peer{}, []*Peer{}
	for range 3 {
		peer := accepted(t, head)
		atHead[peer.Name()] = peer
		worker := <-joined
		t.Cleanup(func() { worker.Close("test is over") })
		atWorker = append(atWorker, worker)
	}
	for _, worker := range atWorker {
		if worker.Name() != "n1" {
			t.Errorf("the head is called %q, want n1", worker.Name())
		}
	}
	long := strings.Repeat("x", 300<<10)
	for name, peer := range atHead {
		for i := range 40 {
			go peer.Send(within(t, time.Minute), note{Text: name, Number: i})
		}
	}
	for _, worker := range atWorker {
		var from string
		var numbers []int
		for range 40 {
			var got note
			if err := worker.Receive(within(t, time.Minute), &got); err != nil {
				t.Fatal(err)
			}
			from, numbers = got.Text, append(numbers, got.Number)
		}
		slices.Sort(numbers)
		if len(slices.Compact(numbers)) != 40 {
			t.Errorf("node %s received %v, want 40 different messages", from, numbers)
		}
		if err := worker.Send(within(t, time.Minute), note{Text: long, Number: 7}); err != nil {
			t.Fatal(err)
		}
		var got note
		if err := atHead[from].Receive(within(t, time.Minute), &got); err != nil || got.Text != long || got.Number != 7 {
			t.Errorf("the head received %d bytes, number %d (%v)", len(got.Text), got.Number, err)
		}
	}
}

func TestCloseReasonArrives(t *testing.T) {
	of := fixture(t, "n1", "n2")
	head := startHead(t, of("n1"))
	worker, atHead := startWorker(t, of("n2")), accepted(t, head)
	ctx := within(t, long)
	// Earlier messages are delivered, and data received meanwhile does no harm.
	for range 5 {
		if err := atHead.Send(ctx, "before"); err != nil {
			t.Fatal(err)
		}
		if err := worker.Send(ctx, "unread"); err != nil {
			t.Fatal(err)
		}
	}
	atHead.Close("the workload has ended")
	atHead.Close("again")
	var text string
	for range 5 {
		if err := worker.Receive(ctx, &text); err != nil {
			t.Fatal(err)
		}
	}
	var closed *ClosedError
	if err := worker.Receive(ctx, &text); !errors.As(err, &closed) || closed.Here || closed.Reason != "the workload has ended" {
		t.Errorf("the worker sees %v, want the reason", err)
	}
	if err := atHead.Err(); !errors.As(err, &closed) || !closed.Here {
		t.Errorf("the head sees %v, want its own Close", err)
	}
	if err := atHead.Send(ctx, "late"); !errors.As(err, &closed) {
		t.Errorf("a message after Close: %v, want a ClosedError", err)
	}
	if err := worker.Send(ctx, "late"); !errors.As(err, &closed) {
		t.Errorf("a message to who has closed: %v, want a ClosedError", err)
	}
}

func TestMessagesAreBounded(t *testing.T) {
	of := fixture(t, "n1", "n2")
	cfg := of("n1")
	cfg.MaxMessage = 1000
	head := startHead(t, cfg)
	worker, atHead := startWorker(t, of("n2")), accepted(t, head)
	wantWords(t, atHead.Send(t.Context(), strings.Repeat("x", 1000)), "at most 1000")
	var number int
	if err := atHead.Send(t.Context(), "no number"); err != nil {
		t.Fatal(err)
	}
	wantWords(t, worker.Receive(within(t, long), &number), "read a message of node n1")
	if worker.Err() != nil {
		t.Errorf("a message that does not fit ended the connection: %v", worker.Err())
	}
	// The worker may send more than the head accepts. That ends the connection,
	// perhaps before the worker has written everything.
	worker.Send(t.Context(), strings.Repeat("x", 5000))
	wantWords(t, atHead.Receive(within(t, long), &number), "at most 4096")
}

func TestSenderWaitsForSlowReceiver(t *testing.T) {
	of := fixture(t, "n1", "n2")
	quick := func(node string) Config {
		cfg := of(node)
		cfg.Loss = 600 * time.Millisecond
		return cfg
	}
	head := startHead(t, quick("n1"))
	worker, atHead := startWorker(t, quick("n2")), accepted(t, head)
	text := strings.Repeat("x", 500<<10)
	// Eventually the socket's buffers and the inbox are full.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	sent := 0
	for ; sent < 200; sent++ {
		if err := worker.Send(ctx, text); err != nil {
			break
		}
	}
	if sent == 200 || sent < inboxSize {
		t.Errorf("%d messages were taken of who does not receive", sent)
	}
	var lost *LostError
	if !errors.As(worker.Err(), &lost) || errors.Is(worker.Err(), errSilent) {
		t.Errorf("the sender sees %v, want that its message was given up", worker.Err())
	}
	for range inboxSize {
		if err := atHead.Receive(within(t, long), &text); err != nil {
			t.Fatalf("a message that was delivered is gone: %v", err)
		}
	}
}

func TestPortsHeldByOthers(t *testing.T) {
	of := fixture(t, "n1", "n2")
	cfg := of("n2")
	cfg.Handshake = 5 * time.Second
	own := cfg.withDefaultsOrFail(t).candidates()
	foreign, err := serverTLS()
	if err != nil {
		t.Fatal(err)
	}
	occupy(t, own[0], func(conn net.Conn) { conn.Read(make([]byte, 1<<20)); conn.Read(make([]byte, 1)) }) // silent
	occupy(t, own[1], func(conn net.Conn) { fmt.Fprint(conn, "220 mail.example.org ESMTP\r\n") })
	// Another user's berth uses the same protocol, but another key.
	other := of("n1")
	other.Prover = preShared(t)
	if took := startHead(t, other).listener.Addr().(*net.TCPAddr).Port; took != int(own[2]) {
		t.Fatalf("the head took port %d, want %d", took, own[2])
	}
	// Another step of the same user has the same candidates.
	occupy(t, own[3], headOf(t, foreign, of("n1").Prover, func(claim *Claim) { claim.Step.Step++ }))
	head := startHead(t, of("n1"))
	if took := head.listener.Addr().(*net.TCPAddr).Port; took != int(own[4]) {
		t.Errorf("the head took port %d, want %d", took, own[4])
	}
	startWorker(t, cfg)
	accepted(t, head)
	for _, port := range own[5:] {
		occupy(t, port, func(net.Conn) {})
	}
	_, err = Listen(t.Context(), of("n1"))
	wantWords(t, err, "8 candidate ports", "--port-range", "address already in use")
}

func (c Config) withDefaultsOrFail(t *testing.T) Config {
	t.Helper()
	c, err := c.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestNodesThatDoNotJoin(t *testing.T) {
	of := fixture(t, "n1", "n2", "n3", "n4")
	cfg := of("n1")
	cfg.Addresses = func(_ context.Context, node string) ([]netip.Addr, error) {
		if node == "n4" {
			return []netip.Addr{netip.MustParseAddr("192.0.2.4")}, nil
		}
		return []netip.Addr{loopback}, nil
	}
	head := startHead(t, cfg)
	startWorker(t, of("n2"))
	accepted(t, head)
	wantWords(t, refusedWorker(t, of("n4"), "is not an address"), "127.0.0.1 is not an address of node n4", "192.0.2.4")
	err := head.Await(within(t, 300*time.Millisecond), []string{"n2", "n3", "n4"})
	var missing *missingError
	if !errors.As(err, &missing) || !slices.Equal(missing.Nodes, []string{"n3", "n4"}) {
		t.Fatalf("Await returns %v, want that n3 and n4 are missing", err)
	}
	wantWords(t, err, "n3, n4", "n4: 127.0.0.1 is not an address")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error %v does not tell the cause", err)
	}
	wantWords(t, (&missingError{Nodes: []string{"n3"}}), "scontrol show node n3")
}

func TestNoHead(t *testing.T) {
	of := fixture(t, "n1", "n2")
	wantWords(t, refusedWorker(t, of("n2"), "connection refused"), "join the head n1", "nobody listens at 127.0.0.1:", "--port-range", "21000-28999")
}

func TestOneNodeWithTwoTasks(t *testing.T) {
	of := fixture(t, "n1", "n2")
	head := startHead(t, of("n1"))
	first := startWorker(t, of("n2"))
	accepted(t, head)
	wantWords(t, refusedWorker(t, of("n2"), "connected already"), "connected already", "two tasks on one node")
	if first.Err() != nil {
		t.Fatalf("the second task ended the first: %v", first.Err())
	}
	first.Close("makes room")
	startWorker(t, of("n2"))
	if again := accepted(t, head); again.Name() != "n2" || again.Err() != nil {
		t.Errorf("%s came again: %v", again.Name(), again.Err())
	}
}

func TestHeadWithSeveralAddressesIsJoinedOnce(t *testing.T) {
	of := fixture(t, "n1", "n2")
	cfg := of("n1")
	cfg.Bind = netip.Addr{}
	head := startHead(t, cfg)
	var addresses []netip.Addr
	for i := range 8 {
		addresses = append(addresses, netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)}))
	}
	worker, err := Join(within(t, long), of("n2"), addresses)
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Close("done")
	accepted(t, head)
	if _, err := head.Accept(within(t, 300*time.Millisecond)); err == nil {
		t.Error("the node joined twice")
	}
}
