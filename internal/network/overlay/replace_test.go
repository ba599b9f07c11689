package overlay

import (
	"net/netip"
	"slices"
	"testing"

	"berth.dev/berth/internal/testutil"
)

// TestNodesTakeAPlaceOneAfterTheOther has two nodes that know the place of a third one.
// Two nodes take it in turn, from different hosts, while the first two go on.
func TestNodesTakeAPlaceOneAfterTheOther(t *testing.T) {
	for _, carrier := range []Carrier{carrierUDP, carrierTCP} {
		t.Run(string(carrier), func(t *testing.T) {
			const place = 2
			var empty Node
			l := newLab(t, labConfig{mtus: []int{1500, 1500, 1500, 1500}, offloads: true, queues: 2, carrier: carrier, streams: true, seat: true,
				through: func(l *lab) {
					empty = Node{Name: "nobody", Prefixes: l.nodes[place].Prefixes}
					l.views = make([][]Node, len(l.members))
					for i := range 2 {
						l.views[i] = append(slices.Clone(l.nodes[:place]), empty)
					}
				}})
			a, b := l.members[0], l.members[1]
			replace := func(node Node) {
				for _, m := range l.members[:2] {
					m.host.try(t, func() error { return m.overlay.Replace(place, node) })
				}
			}
			echoUDP(t, a, b.serveUDP(t, b.nodeAddr), noise(10))
			first, second := l.members[place], l.members[place+1]
			for _, pair := range [][2]*member{{first, second}, {second, first}} {
				m, other := pair[0], pair[1]
				node := l.nodes[slices.Index(l.members, m)]
				replace(node)
				m.start(t, place, append(slices.Clone(l.nodes[:place]), node))
				for _, to := range []*member{a, b} {
					echoUDP(t, m, to.serveUDP(t, to.nodeAddr), noise(10)) // until there is a path
				}
				for _, to := range []*member{a, b} {
					sendTCP(t, m, to.serveTCP(t, to.nodeAddr), noise(1_000_000))
					sendTCP(t, to, m.serveTCP(t, m.nodeAddr), noise(1_000_000))
				}
				sendTCP(t, a, b.serveTCP(t, b.nodeAddr), noise(1_000_000))
				if m == second {
					// The earlier node still runs. Nothing of it is accepted.
					before := b.overlay.Counters()
					other.start(t, place, append(slices.Clone(l.nodes[:place]), l.nodes[place]))
					testutil.Eventually(t, "packets of the earlier node are dropped", func() bool {
						return b.overlay.Counters().Foreign > before.Foreign
					})
					ping(t, m, b.nodeAddr)
					other.stop(t)
				}
				m.stop(t)
				replace(empty)
			}
			ping(t, a, b.nodeAddr)
			for _, m := range l.members[:2] {
				if paths := m.overlay.table.Load().peers[place].paths; len(paths) > 0 {
					t.Errorf("%d paths to nobody", len(paths))
				}
			}
		})
	}
}

func TestReplaceRefuses(t *testing.T) {
	endpoint := netip.MustParseAddrPort("192.0.2.1:1")
	nodes := []Node{{Name: "a"}, {Name: "b", Endpoints: []netip.AddrPort{endpoint}}, {Name: "c"}}
	table, err := newTable(testKey, 0, nodes, false, 1)
	if err != nil {
		t.Fatal(err)
	}
	o := &Overlay{key: testKey}
	o.queues = make([]*queue, 1)
	o.prober = newProber(o, carrierAuto, nil)
	o.table.Store(table)
	for name, wrong := range map[string]struct {
		index int
		node  Node
	}{
		"this node":               {0, Node{Name: "d"}},
		"no such place":           {3, Node{Name: "d"}},
		"a negative place":        {-1, Node{Name: "d"}},
		"another node's endpoint": {2, Node{Name: "d", Endpoints: []netip.AddrPort{endpoint}}},
		"no port":                 {2, Node{Name: "d", Endpoints: []netip.AddrPort{netip.AddrPortFrom(endpoint.Addr(), 0)}}},
	} {
		if err := o.Replace(wrong.index, wrong.node); err == nil {
			t.Errorf("%s: no error", name)
		}
		if o.table.Load() != table {
			t.Fatalf("%s: the table has changed", name)
		}
	}
	if err := o.Replace(1, Node{Name: "b"}); err != nil {
		t.Fatal(err)
	}
	if err := o.Replace(2, Node{Name: "d", Endpoints: []netip.AddrPort{endpoint}}); err != nil {
		t.Errorf("the endpoint of a node that has left: %v", err)
	}
}
