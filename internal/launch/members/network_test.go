package members

import (
	"net/netip"
	"reflect"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
)

// Each node's own end names the sockets of all nodes, at the addresses that reach them.
func TestNetworkOfThreeNodes(t *testing.T) {
	n := newNetwork(rendezvous.DefaultPorts(), "udp")
	n.data.Address = netip.MustParseAddr("192.0.2.1")
	n.sockets.Ports = hostnet.Ports{Packets: []uint16{1001}, Streams: 1002, Switches: []uint16{1003}}
	other := func(address string, first uint16) *member {
		return &member{hello: hello{Address: netip.MustParseAddr(address), Ports: hostnet.Ports{Packets: []uint16{first + 1}, Streams: first + 2, Switches: []uint16{first + 3}}}}
	}
	planned := []cluster.Member{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	ends := n.lay([]byte("key"), planned, []*member{other("192.0.2.2", 2000), other("192.0.2.3", 3000)})
	if len(ends) != 2 || ends[0].Self != 1 || ends[1].Self != 2 {
		t.Fatalf("ends of the other nodes: %+v", ends)
	}
	for i, end := range append([]hostnet.Overlay{n.Places().Current()}, ends...) {
		var streams, switches []string
		for k, node := range end.Nodes {
			streams = append(streams, node.Name+" "+node.Stream.String())
			switches = append(switches, end.Switches[k][0].String())
		}
		if want := []string{"a 192.0.2.1:1002", "b 192.0.2.2:2002", "c 192.0.2.3:3002"}; i > 0 && !reflect.DeepEqual(streams, want) {
			t.Errorf("end %d has streams %v, want %v", i, streams, want)
		}
		if want := []string{"192.0.2.1:1003", "192.0.2.2:2003", "192.0.2.3:3003"}; !reflect.DeepEqual(switches, want) {
			t.Errorf("end %d has Switches at %v, want %v", i, switches, want)
		}
	}
	if n.Places().Current().Nodes[0].Stream.IsValid() {
		t.Error("the head has an address for itself")
	}
}

func TestNoNetworkOnASingleNode(t *testing.T) {
	var n network
	if err := n.UseInterface("none"); err != nil || n.Places() != nil || n.HasSwitch() {
		t.Errorf("a single node has a network: %v", err)
	}
}
