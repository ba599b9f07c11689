package members

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/identity"
)

// planned returns the head's message to a node of a cluster, before any seat is taken.
func planned(t *testing.T, spec cluster.Spec, nodes int) Welcome {
	t.Helper()
	var offers []cluster.Offer
	var others []*member
	for i := range nodes {
		host := fmt.Sprintf("node%04d", i+1)
		offers = append(offers, cluster.Offer{Host: host, IPv6: cluster.ToOutside, RunID: "job-4711-0"})
		ports := hostnet.Ports{Packets: []uint16{21001, 21002, 21003, 21004}, Streams: 21005, Switches: []uint16{21006, 21007}}
		address := netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})
		others = append(others, &member{hello: hello{Address: address, Ports: ports}})
	}
	plans, err := cluster.Design(spec, offers)
	if err != nil {
		t.Fatal(err)
	}
	// Keys have the same size on all nodes; making them for thousands of nodes takes minutes.
	keys, err := identity.Make(plans[:1], "test", nil)
	if err != nil {
		t.Fatal(err)
	}
	n := newNetwork(rendezvous.DefaultPorts(), "")
	n.data.Address = netip.MustParseAddr("10.128.0.1")
	n.lay(make([]byte, 32), plans[0].Places(), others[1:])
	return Welcome{Version: cluster.Version(), Plan: plans[0], Files: keys.Nodes[0], Network: n.places.View(0), Own: keys.Owns[0]}
}

// liveHeap returns the size of all reachable objects in bytes.
func liveHeap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// A cluster with the most seats fits the messages between nodes when all seats are taken, with
// the longest names and addresses. A node that reads the message needs little memory for it.
func TestMostSeatsFitOneMessage(t *testing.T) {
	const seats, most = 4095, 8 << 20
	welcome := planned(t, cluster.Spec{Seats: seats}, 1)
	if err := checkSize(welcome, 1, seats); err != nil {
		t.Fatal(err)
	}
	for i := range seats {
		change := hostnet.LargestChange(1 + i)
		change.Name = fmt.Sprintf("%0*d", len(change.Name), i)
		address := change.Host.As16()
		address[14], address[15] = 0xf0|byte(i>>8), byte(i)
		change.Host = netip.AddrFrom16(address)
		welcome.Network.Nodes = append(welcome.Network.Nodes, change)
	}
	content, err := json.Marshal(welcome)
	if err != nil {
		t.Fatal(err)
	}
	if len(content) > rendezvous.DefaultMaxMessage {
		t.Errorf("a message has %d bytes", len(content))
	}
	before := liveHeap()
	var read Welcome
	if err := json.Unmarshal(content, &read); err != nil {
		t.Fatal(err)
	}
	p := hostnet.NewPlaces(read.Network, prefixesOf(read.Plan.Places()))
	used := liveHeap() - before
	t.Logf("a message of %d bytes becomes places of %d bytes", len(content), used)
	if used > most {
		t.Errorf("the places use %d bytes, want at most %d", used, most)
	}
	now := p.Current()
	last := now.Nodes[seats]
	if len(now.Nodes) != 1+seats || len(last.Endpoints) != 4 || len(last.Prefixes) != 4 || last.Prefixes[0] == now.Nodes[1].Prefixes[0] {
		t.Errorf("%d places, the last with %+v", len(now.Nodes), last)
	}
	runtime.KeepAlive(read)
	runtime.KeepAlive(content)
}

// A cluster whose places would not fit a message is refused before a node has its plan.
func TestTooManyNodesWithSeatsAreRefused(t *testing.T) {
	for _, test := range []struct {
		nodes, seats int
		words        string
	}{
		{1000, 1000, ""},
		{3000, 0, ""},
		{3000, 1096, "here at most "},
	} {
		welcome := planned(t, cluster.Spec{Seats: test.seats}, test.nodes)
		err := checkSize(welcome, test.nodes, test.seats)
		if test.words == "" && err != nil || test.words != "" && (err == nil || !strings.Contains(err.Error(), test.words)) {
			t.Errorf("%d nodes and %d seats: %v, want %q", test.nodes, test.seats, err, test.words)
		}
	}
}
