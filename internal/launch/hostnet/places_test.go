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
	prefix := netip.MustParsePrefix("10.0.2.0/24")
	at := []netip.AddrPort{netip.MustParseAddrPort("192.0.2.3:1")}
	p := NewPlaces(Overlay{Key: []byte("key"), Self: 1, Nodes: []overlay.Node{{Name: "n1"}, {Name: "n2"}, {Prefixes: []netip.Prefix{prefix}}}, Switches: make([][]netip.AddrPort, 3)})
	apply := func(change Change) {
		t.Helper()
		if err := p.Apply(change); err != nil {
			t.Fatal(err)
		}
	}
	taken, left := Change{Index: 2, Name: "n3", Endpoints: at, Switches: at}, Change{Index: 2}
	apply(taken) // nobody serves the network yet
	now, first, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	if want := (overlay.Node{Name: "n3", Endpoints: at, Prefixes: []netip.Prefix{prefix}}); !reflect.DeepEqual(now.Nodes[2], want) || now.Switches[2][0] != at[0] {
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
	at := func(addresses ...string) (all []netip.AddrPort) {
		for _, a := range addresses {
			all = append(all, netip.MustParseAddrPort(a))
		}
		return all
	}
	p := NewPlaces(Overlay{Nodes: []overlay.Node{{Name: "n1"}, {Name: "n2", Endpoints: at("192.0.2.2:1")}, {}}, Switches: make([][]netip.AddrPort, 3)})
	_, pipe, err := p.Connect()
	if err != nil {
		t.Fatal(err)
	}
	good := Change{Index: 2, Name: "n3", Endpoints: at("192.0.2.3:1", "[::ffff:192.0.2.3]:2"), Stream: at("192.0.2.3:1")[0], Switches: at("192.0.2.3:5")}
	for name, test := range map[string]struct {
		change func(*Change)
		words  string
	}{
		"another family":          {func(c *Change) { c.Endpoints = at("[fd00::1]:22000") }, "all nodes need IPv4 addresses, or all IPv6"},
		"another node's address":  {func(c *Change) { c.Endpoints = at("192.0.2.3:1", "[::ffff:192.0.2.2]:1") }, "an address of node n2"},
		"no port":                 {func(c *Change) { c.Endpoints = at("192.0.2.3:0") }, "not an address with a port"},
		"no port for streams":     {func(c *Change) { c.Stream = at("192.0.2.3:0")[0] }, "not an address with a port"},
		"no port of the Switch":   {func(c *Change) { c.Switches = at("192.0.2.3:0") }, "not an address with a port"},
		"no address":              {func(c *Change) { c.Endpoints = make([]netip.AddrPort, 1) }, "not an address with a port"},
		"the unspecified address": {func(c *Change) { c.Endpoints = at("0.0.0.0:1") }, "not an address with a port"},
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
	p.Close()
	var got []Change
	if err := ReadChanges(pipe, func(c Change) error { got = append(got, c); return nil }); err != nil || !reflect.DeepEqual(got, []Change{good}) {
		t.Errorf("the process reads %+v, %v", got, err)
	}
}

// A change that the process cannot receive is kept for the next one.
func TestChangeForDeadProcessIsKept(t *testing.T) {
	p := NewPlaces(Overlay{Self: 0, Nodes: make([]overlay.Node, 2), Switches: make([][]netip.AddrPort, 2)})
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
