package share

import (
	"fmt"
	"net/netip"
	"testing"
)

func pod(number byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, number}) }

// A pod that takes all the places that it can get leaves some for others.
func TestOnePodCannotTakeAllPlaces(t *testing.T) {
	p := New(4096)
	taken := map[byte]int{}
	for number := range byte(5) {
		for p.Take(pod(number)) {
			taken[number]++
		}
	}
	if got, want := fmt.Sprint(taken), "map[0:3072 1:768 2:192 3:48 4:12]"; got != want {
		t.Errorf("pods that come one after the other get %s, want %s", got, want)
	}
	for number, count := range taken {
		for range count {
			p.Give(pod(number))
		}
	}
	if p.Taken() != 0 || len(p.of) != 0 {
		t.Errorf("%d places of %d pods are left", p.Taken(), len(p.of))
	}
	// Pods that come together get equal shares.
	for range 4096 {
		p.Take(pod(0))
		p.Take(pod(1))
	}
	if one, other := p.of[pod(0)], p.of[pod(1)]; one-other > 1 || one < 3*4096/7 {
		t.Errorf("two pods get %d and %d places", one, other)
	}
}
