package members

import (
	"net/netip"
	"testing"

	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/testutil"
)

// Nodes that fall behind receive only the last change of each place, and all of them end up with
// the same places.
func TestChangesReachAllNodes(t *testing.T) {
	s := newSeatTestOf(t, 4, running("57", "n2,n3,n4"))
	first, _, _ := s.join("n2", "57")
	second, _, _ := s.join("n3", "57")
	change := hostnet.Change{Index: 4, Name: "n9-57", Host: netip.MustParseAddr("127.0.0.9"), Ports: hostnet.Ports{Streams: 1}}
	s.head.seats.mu.Lock()
	for port := range uint16(1000) {
		change.Ports.Packets = []uint16{1 + port}
		s.head.seats.tell(new(seated), change)
	}
	s.head.seats.mu.Unlock()
	third, _, _ := s.join("n4", "57")
	for _, m := range []*Members{first, second, third} {
		testutil.Eventually(t, "the last change has arrived", func() bool {
			endpoints := m.places.Current().Nodes[4].Endpoints
			return len(endpoints) == 1 && endpoints[0].Port() == 1000
		})
	}
	spread := s.head.seats.spread
	testutil.Eventually(t, "all outboxes are empty", func() bool {
		spread.mu.Lock()
		defer spread.mu.Unlock()
		return len(spread.outboxes) == 0 && len(spread.collected) == 0
	})
}
