package hostnet

import (
	"io"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"berth.dev/berth/internal/network/overlay"
)

// Each process that serves the network begins with all changes and receives the later ones,
// also if another one served it before.
func TestProcessesLearnOfChanges(t *testing.T) {
	prefixes := [][]netip.Prefix{nil, nil, {netip.MustParsePrefix("10.0.2.0/24")}}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.3"), port) }
	p := NewPlaces(View{Key: []byte("key"), Self: 1, Nodes: []Change{{Name: "n1"}}}, prefixes)
	apply := func(change Change) {
		t.Helper()
		if err := p.Apply(change); err != nil {
			t.Fatal(err)
		}
	}
	taken, left := Change{Index: 2, Name: "n3", Host: at(0).Addr(), Ports: Ports{Packets: []uint16{1}, Streams: 2, Switches: []uint16{3}}}, Change{Index: 2}
	apply(taken) // nobody serves the network yet
	now, first, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	if want := (overlay.Node{Name: "n3", Endpoints: []netip.AddrPort{at(1)}, Stream: at(2), Prefixes: prefixes[2]}); !reflect.DeepEqual(now.Nodes[2], want) || now.Switches[2][0] != at(3) {
		t.Errorf("the process begins with %+v", now)
	}
	apply(left)
	apply(taken)
	_, second, err := p.Connect() // the first process has died
	if err != nil {
		t.Fatal(err)
	}
	apply(left)
	p.Close()
	p.Close()
	for i, test := range []struct {
		pipe io.ReadCloser
		want []Change
	}{{first, []Change{left, taken}}, {second, []Change{left}}} {
		var got []Change
		if err := ReadChanges(test.pipe, func(c Change) error { got = append(got, c); return nil }); err != nil {
			t.Error(err)
		}
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("process %d: %+v, want %+v", i, got, test.want)
		}
		test.pipe.Close()
	}
	apply(taken) // the network is not served any more
	for _, index := range []int{-1, 1, 3} {
		if p.Apply(Change{Index: index}) == nil {
			t.Errorf("place %d was changed", index)
		}
	}
	if now.Nodes[2].Name != "n3" || p.Current().Nodes[2].Name != "n3" {
		t.Error("a change has an effect on earlier copies, or none at all")
	}
	var none *Places
	none.Close()
}

// An address that the nodes cannot use is neither kept nor passed on.
func TestUnusableNodesTakeNoPlace(t *testing.T) {
	other := Change{Index: 1, Name: "n2", Host: netip.MustParseAddr("192.0.2.2"), Ports: Ports{Packets: []uint16{1}, Streams: 3}}
	p := NewPlaces(View{Nodes: []Change{{Name: "n1"}, other}}, make([][]netip.Prefix, 3))
	_, pipe, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	good := Change{Index: 2, Name: "n3", Host: netip.MustParseAddr("192.0.2.3"), Ports: Ports{Packets: []uint16{1, 2}, Streams: 1, Switches: []uint16{5}}}
	for name, test := range map[string]struct {
		change func(*Change)
		words  string
	}{
		"another family":          {func(c *Change) { c.Host = netip.MustParseAddr("fd00::1") }, "all nodes need IPv4 addresses, or all IPv6"},
		"another node's address":  {func(c *Change) { c.Host = netip.MustParseAddr("::ffff:192.0.2.2") }, "an address of node n2"},
		"no port":                 {func(c *Change) { c.Ports.Packets = []uint16{0} }, "not an address with a port"},
		"no port for streams":     {func(c *Change) { c.Ports.Streams = 0 }, "not an address with a port"},
		"no port of the Switch":   {func(c *Change) { c.Ports.Switches = []uint16{0} }, "not an address with a port"},
		"no address":              {func(c *Change) { c.Host = netip.Addr{} }, "not an address with a port"},
		"the unspecified address": {func(c *Change) { c.Host = netip.IPv4Unspecified() }, "not an address with a port"},
	} {
		t.Run(name, func(t *testing.T) {
			change := good
			test.change(&change)
			if err := p.Apply(change); err == nil || !strings.Contains(err.Error(), test.words) {
				t.Errorf("error %v, want %q", err, test.words)
			}
			if got := p.Current().Nodes[2]; len(got.Endpoints) > 0 {
				t.Errorf("the place is kept: %+v", got)
			}
		})
	}
	if err := p.Apply(good); err != nil {
		t.Fatal(err)
	}
	// The address of a node that has left belongs to nobody.
	moved := Change{Index: 1, Name: "n4", Host: other.Host, Ports: Ports{Packets: []uint16{2}, Streams: 4}}
	again := Change{Index: 2, Name: "n5", Host: other.Host, Ports: other.Ports}
	for _, change := range []Change{moved, again} {
		if err := p.Apply(change); err != nil {
			t.Fatal(err)
		}
	}
	p.Close()
	var got []Change
	if err := ReadChanges(pipe, func(c Change) error { got = append(got, c); return nil }); err != nil || !reflect.DeepEqual(got, []Change{good, moved, again}) {
		t.Errorf("the process reads %+v, %v", got, err)
	}
}

// A change that the process cannot receive is kept for the next one.
func TestChangeForDeadProcessIsKept(t *testing.T) {
	p := NewPlaces(View{}, make([][]netip.Prefix, 2))
	_, pipe, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	if err := p.Apply(Change{Index: 1, Name: "n2"}); err == nil {
		t.Error("a dead process has received a change")
	}
	now, pipe, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if now.Nodes[1].Name != "n2" {
		t.Errorf("the next process begins with %+v", now)
	}
}

// A process that serves the network begins with the places that the head sends.
func TestViewHasAllPlaces(t *testing.T) {
	change := Change{Index: 1, Name: "n2", Host: netip.MustParseAddr("192.0.2.2"), Ports: Ports{Packets: []uint16{1}, Streams: 3, Switches: []uint16{4}}}
	p := NewPlaces(View{Nodes: []Change{{Name: "n1", Ports: Ports{Switches: []uint16{9}}}}}, make([][]netip.Prefix, 3))
	if err := p.Apply(change); err != nil {
		t.Fatal(err)
	}
	view := p.View(2)
	if len(view.Nodes) != 2 || view.Self != 2 || view.Nodes[0].Name != "n1" || !reflect.DeepEqual(view.Nodes[1], change) {
		t.Errorf("the view is %+v", view)
	}
	if p.Size() != 3 || p.Name(1) != "n2" {
		t.Errorf("%d places, the second with %q", p.Size(), p.Name(1))
	}
}
