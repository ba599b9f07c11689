package egress

import (
	"fmt"
	"net/netip"
	"testing"
)

// A pod that opens all the connections that it can get leaves some for others.
func TestOnePodCannotTakeAllConnections(t *testing.T) {
	s := newShares(Default().Connections)
	taken := map[byte]int{}
	pod := func(number byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, number}) }
	for number := range byte(5) {
		for s.take(pod(number)) {
			taken[number]++
		}
	}
	if got, want := fmt.Sprint(taken), "map[0:3072 1:768 2:192 3:48 4:12]"; got != want {
		t.Errorf("pods that come one after the other get %s, want %s", got, want)
	}
	for number, count := range taken {
		for range count {
			s.give(pod(number))
		}
	}
	if s.total != 0 || len(s.open) != 0 {
		t.Errorf("%d connections of %d pods are left", s.total, len(s.open))
	}
	// Pods that come together get equal shares.
	for range Default().Connections {
		s.take(pod(0))
		s.take(pod(1))
	}
	if one, other := s.open[pod(0)], s.open[pod(1)]; one-other > 1 || one < 3*Default().Connections/7 {
		t.Errorf("two pods get %d and %d connections", one, other)
	}
}
