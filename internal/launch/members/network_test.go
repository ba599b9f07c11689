package members

import (
	"net/netip"
	"reflect"
	"strconv"
	"strings"
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
	n.lay([]byte("key"), planned, []*member{other("192.0.2.2", 2000), other("192.0.2.3", 3000)})
	for i, view := range []hostnet.View{n.Places().View(0), n.endOf(1, nil), n.endOf(2, nil)} {
		if view.Self != i {
			t.Errorf("end %d is that of node %d", i, view.Self)
		}
		end := hostnet.NewPlaces(view, make([][]netip.Prefix, 3)).Current()
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

func TestNodesOfTwoFamiliesAreRefused(t *testing.T) {
	var others []*member
	for i, test := range []struct{ address, words string }{
		{"192.0.2.2", ""}, {"::ffff:192.0.2.3", ""}, {"fd00::4", "node n4 has the address fd00::4 and node n2 192.0.2.2: all nodes need"},
	} {
		others = append(others, &member{name: "n" + strconv.Itoa(i+2), hello: hello{Address: netip.MustParseAddr(test.address)}})
		err := checkFamilies(others)
		if test.words == "" && err != nil || test.words != "" && (err == nil || !strings.Contains(err.Error(), test.words)) {
			t.Errorf("with %s: %v, want %q", test.address, err, test.words)
		}
	}
}

func TestNoNetworkOnASingleNode(t *testing.T) {
	var n network
	if err := n.UseInterface("none"); err != nil || n.Places() != nil || n.HasSwitch() {
		t.Errorf("a single node has a network: %v", err)
	}
}
