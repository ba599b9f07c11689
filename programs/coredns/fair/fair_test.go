package fair

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/coredns/coredns/plugin"
	"github.com/miekg/dns"
)

func pod(number byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, number}) }

// A pod that comes late, with one query, is next after one of the pod that floods.
func TestClientsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns(1, 4)
		var served []string
		ask := func(client byte, name string) {
			go func() {
				if !turns.take(pod(client)) {
					served = append(served, name+" dropped")
					return
				}
				served = append(served, name)
			}()
			synctest.Wait()
		}
		for i := range 6 {
			ask(1, fmt.Sprint("flood ", i))
		}
		ask(2, "late")
		for range 6 {
			turns.give()
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

// A pod whose queries wait for other servers leaves places for other pods.
func TestOnePodCannotTakeAllPlaces(t *testing.T) {
	s := newShares(256)
	var taken [4]int
	for number := range taken {
		for s.take(pod(byte(number))) {
			taken[number]++
		}
	}
	if want := [4]int{192, 48, 12, 3}; taken != want {
		t.Errorf("pods that come one after the other get %v, want %v", taken, want)
	}
	for number, count := range taken {
		for range count {
			s.give(pod(byte(number)))
		}
	}
	if s.total != 0 || len(s.open) != 0 {
		t.Errorf("%d places of %d pods are left", s.total, len(s.open))
	}
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
		turns, shares := newTurns(1, waitingMost), newShares(16)
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
		if turns.running != 0 || shares.total != 0 {
			t.Errorf("%d turns and %d places are left", turns.running, shares.total)
		}
	})
}
