package hostnet

import (
	"io"
	"net/netip"
	"reflect"
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
