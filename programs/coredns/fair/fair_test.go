package fair

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/plugin/pkg/nonwriter"
	"github.com/miekg/dns"

	"berth.dev/berth/programs/coredns/share"
)

func pod(number byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, number}) }

// A pod that comes late, with one query, is next after one of the pod that floods.
func TestClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1, 4)
		var served []string
		var own []turn
		ask := func(client byte, name string) {
			go func() {
				mine, ok := turns.take(pod(client))
				if !ok {
					served = append(served, name+" dropped")
					return
				}
				served = append(served, name)
				own = append(own, mine)
			}()
			synctest.Wait()
		}
		for i := range 6 {
			ask(1, fmt.Sprint("flood ", i))
		}
		ask(2, "late")
		for i := range 6 {
			turns.give(own[i])
			synctest.Wait()
		}
		want := []string{"flood 0", "flood 5 dropped", "flood 1", "late", "flood 2", "flood 3", "flood 4"}
		if !slices.Equal(served, want) {
			t.Errorf("served %q, want %q", served, want)
		}
		if turns.running != 0 || len(turns.clients)+len(turns.order) != 0 {
			t.Errorf("left: %d running, %d clients", turns.running, len(turns.clients))
		}
	})
}

// While another pod asks now and then, a pod that floods the server has a share of the
// time; it has all of it before and afterwards. The other pod never waits for that share.
func TestHeavyClientLeavesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, processors = time.Millisecond, 2
		turns := newTurns(processors, 1000)
		var served [3]atomic.Int64 // by client
		var mu sync.Mutex
		var waited time.Duration // under mu
		serve := func(client byte) {
			began := time.Now()
			own, ok := turns.take(pod(client))
			if !ok {
				t.Error("dropped")
			}
			if client == 2 {
				mu.Lock()
				waited = max(waited, time.Since(began))
				mu.Unlock()
			}
			time.Sleep(takes)
			served[client].Add(1)
			turns.give(own)
		}
		ctx, stop := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		for range 100 {
			flood.Go(func() {
				for ctx.Err() == nil {
					serve(1)
				}
			})
		}
		const second = int(time.Second / takes)
		in := func(length time.Duration) int {
			before := served[1].Load()
			time.Sleep(length)
			return int(served[1].Load() - before)
		}
		if got := in(time.Second); got < processors*second*9/10 {
			t.Errorf("alone, the pod has %d answers in a second, want about %d", got, processors*second)
		}
		polite, end := context.WithCancel(t.Context())
		flood.Go(func() {
			for polite.Err() == nil {
				serve(2)
				time.Sleep(takes)
			}
		})
		time.Sleep(100 * time.Millisecond)
		mu.Lock()
		waited = 0
		mu.Unlock()
		if got, want := in(time.Second), int(heavyShare*processors*float64(second)); got < want*8/10 || got > want*12/10 {
			t.Errorf("beside another pod, it has %d answers in a second, want about %d", got, want)
		}
		mu.Lock()
		longest := waited
		mu.Unlock()
		if got := int(served[2].Load()); got < second*4/10 || longest > takes {
			t.Errorf("the other pod has %d answers, want about %d; it waited up to %v", got, second/2, longest)
		}
		end()
		time.Sleep(lightFor + 100*time.Millisecond)
		if got := in(time.Second); got < processors*second*9/10 {
			t.Errorf("alone again, the pod has %d answers in a second, want about %d", got, processors*second)
		}
		stop()
		flood.Wait()
		time.Sleep(time.Second)
		if turns.running != 0 || len(turns.clients)+len(turns.order) != 0 || turns.timer != nil {
			t.Errorf("left: %d running, %d clients, timer %v", turns.running, len(turns.clients), turns.timer)
		}
	})
}

// The process may be stopped, as by Slurm's suspension of a job, while it handles queries
// of a heavy client. Afterwards the client soon has its share again.
func TestHeavyClientHasItsShareAfterStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes, processors = time.Millisecond, 8
		turns := newTurns(processors, 1000)
		var flooded atomic.Int64
		var continues atomic.Pointer[time.Time]
		continues.Store(&time.Time{})
		serve := func(client byte, late time.Duration) {
			own, ok := turns.take(pod(client))
			if !ok {
				t.Error("dropped")
			}
			time.Sleep(max(takes, time.Until(continues.Load().Add(late))))
			turns.give(own)
		}
		ctx, stop := context.WithCancel(t.Context())
		var clients sync.WaitGroup
		const queries = 100
		for i := range time.Duration(queries) {
			clients.Go(func() {
				for ctx.Err() == nil {
					serve(1, 10*i*takes) // meanwhile, the other client asks
					flooded.Add(1)
				}
			})
		}
		clients.Go(func() {
			for ctx.Err() == nil {
				serve(2, 0)
				time.Sleep(takes)
			}
		})
		time.Sleep(time.Second)
		const stopped = 10 * time.Minute
		end := time.Now().Add(stopped)
		continues.Store(&end)
		time.Sleep(stopped + 11*queries*takes)
		before := flooded.Load()
		time.Sleep(time.Second)
		if got, want := int(flooded.Load()-before), int(heavyShare*processors*float64(time.Second/takes)); got < want*8/10 || got > want*12/10 {
			t.Errorf("the heavy client has %d answers in a second, want about %d", got, want)
		}
		stop()
		clients.Wait()
		time.Sleep(time.Second) // a timer is left
	})
}

// writer is the connection of a query from a pod.
type writer struct {
	dns.ResponseWriter
	from netip.Addr
}

func (w writer) RemoteAddr() net.Addr { return &net.UDPAddr{IP: w.from.AsSlice(), Port: 1000} }

// While the queries of one pod wait for a silent server, they hold no turn, and another
// pod can still ask. The user reads once which pod it is.
func TestSilentServerKeepsNobodyElseWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		once := &once{notice: func(text string) { said = append(said, text) }}
		silent := make(chan struct{})
		asked := map[netip.Addr]int{}
		server := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
			asked[clientOf(w, query)]++
			<-silent
			return dns.RcodeSuccess, nil
		})
		turns, shares := newTurns(1, waitingMost), share.New(16)
		handler := &turnsHandler{&shareHandler{server, shares, once}, turns, once}
		ask := func(from netip.Addr) {
			go handler.ServeDNS(t.Context(), writer{from: from}, new(dns.Msg).SetQuestion("example.org.", dns.TypeA))
			synctest.Wait()
		}
		for range 100 {
			ask(pod(1))
		}
		ask(pod(2))
		if asked[pod(1)] != 12 || asked[pod(2)] != 1 {
			t.Errorf("the server was asked %v times, want 12 and 1", asked)
		}
		if want := []string{"dropped DNS queries of pod 10.0.0.1: too many of them wait for the host's name servers"}; !slices.Equal(said, want) {
			t.Errorf("said %q, want %q", said, want)
		}
		close(silent)
		synctest.Wait()
		if turns.running != 0 || shares.Taken() != 0 {
			t.Errorf("%d turns and %d places are left", turns.running, shares.Taken())
		}
	})
}

// asking sends a query for another name through all plugins and waits for its answer, as
// the kubernetes plugin does for an ExternalName Service (plugin/pkg/upstream). Without
// one, it answers that there are no addresses.
func asking(handler *plugin.Handler, other plugin.Handler) plugin.HandlerFunc {
	return func(ctx context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
		if query.Question[0].Name != serviceName {
			return other.ServeDNS(ctx, w, query)
		}
		captured := nonwriter.New(w)
		_, _ = (*handler).ServeDNS(ctx, captured, new(dns.Msg).SetQuestion("example.org.", dns.TypeA))
		answer := new(dns.Msg).SetReply(query)
		if captured.Msg != nil {
			answer.Answer = captured.Msg.Answer
		}
		return dns.RcodeSuccess, w.WriteMsg(answer)
	}
}

const serviceName = "external.default.svc.cluster.local."

// counted is the connection of a query from a pod. It counts the answers.
type counted struct {
	writer
	answers *int
}

func (c counted) WriteMsg(*dns.Msg) error { *c.answers++; return nil }

// A query that makes another one has one turn for both. It holds none while the other
// one waits for a server.
func TestQueryForAnotherNameHasItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once := &once{notice: func(text string) { t.Error(text) }}
		silent := make(chan struct{})
		server := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
			<-silent
			return dns.RcodeSuccess, w.WriteMsg(new(dns.Msg).SetReply(query))
		})
		turns, shares := newTurns(1, waitingMost), share.New(16)
		var handler plugin.Handler
		handler = &turnsHandler{asking(&handler, &shareHandler{server, shares, once}), turns, once}
		answers := 0
		for range 3 {
			go handler.ServeDNS(t.Context(), counted{writer{from: pod(1)}, &answers}, new(dns.Msg).SetQuestion(serviceName, dns.TypeA))
			synctest.Wait()
		}
		if turns.running != 0 || shares.Taken() != 3 {
			t.Errorf("%d queries have a turn and %d wait for a server, want 0 and 3", turns.running, shares.Taken())
		}
		close(silent)
		synctest.Wait()
		if answers != 3 || turns.running != 0 || shares.Taken() != 0 {
			t.Errorf("%d answers, want 3; %d turns and %d places are left", answers, turns.running, shares.Taken())
		}
	})
}

// When the query for another name is dropped, the client gets no answer, also none
// without addresses: it has to ask again.
func TestDropOfQueryForAnotherName(t *testing.T) {
	once := &once{notice: func(string) {}}
	server := plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
		return dns.RcodeSuccess, w.WriteMsg(new(dns.Msg).SetReply(query))
	})
	shares := share.New(16)
	for shares.Take(pod(1)) {
	}
	var handler plugin.Handler
	handler = &turnsHandler{asking(&handler, &shareHandler{server, shares, once}), newTurns(1, waitingMost), once}
	for number, want := range map[byte]int{1: 0, 2: 1} {
		answers := 0
		code, err := handler.ServeDNS(t.Context(), counted{writer{from: pod(number)}, &answers}, new(dns.Msg).SetQuestion(serviceName, dns.TypeA))
		if answers != want || !plugin.ClientWrite(code) || err != nil {
			t.Errorf("pod %d: %d answers, want %d; code %d, %v", number, answers, want, code, err)
		}
	}
}

// stuck is a TCP connection whose client does not read.
type stuck struct {
	writer
	read chan struct{}
}

func (s stuck) RemoteAddr() net.Addr { return &net.TCPAddr{IP: s.from.AsSlice(), Port: 1000} }

func (s stuck) WriteMsg(*dns.Msg) error { <-s.read; return nil }

func (s stuck) Write(b []byte) (int, error) { <-s.read; return len(b), nil }

// A client that does not read an answer over TCP holds no turn. Each turn ends once.
func TestClientThatDoesNotReadHoldsNoTurn(t *testing.T) {
	for name, send := range map[string]func(dns.ResponseWriter, *dns.Msg){
		"message": func(w dns.ResponseWriter, m *dns.Msg) { _ = w.WriteMsg(m) },
		"bytes":   func(w dns.ResponseWriter, m *dns.Msg) { _, _ = w.Write(make([]byte, m.Len())) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				once := &once{notice: func(text string) { t.Error(text) }}
				turns := newTurns(1, waitingMost)
				answered := 0
				handler := &turnsHandler{plugin.HandlerFunc(func(_ context.Context, w dns.ResponseWriter, query *dns.Msg) (int, error) {
					answered++
					send(w, new(dns.Msg).SetReply(query))
					return dns.RcodeSuccess, nil
				}), turns, once}
				client := stuck{writer{from: pod(1)}, make(chan struct{})}
				for range 3 {
					go handler.ServeDNS(t.Context(), client, new(dns.Msg).SetQuestion("example.org.", dns.TypeA))
					synctest.Wait()
				}
				if answered != 3 || turns.running != 0 {
					t.Errorf("%d queries have their answer, want 3; %d have a turn", answered, turns.running)
				}
				close(client.read)
				synctest.Wait()
				if turns.running != 0 {
					t.Errorf("%d turns are left", turns.running)
				}
			})
		})
	}
}
