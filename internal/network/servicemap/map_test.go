package servicemap

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/policy"
)

var (
	client  = netip.MustParseAddr("100.64.0.2")
	service = netip.MustParseAddrPort("100.66.0.7:80")
)

func newDirectory() *Map {
	return New([]netip.Prefix{netip.MustParsePrefix("100.64.0.0/15"), netip.MustParsePrefix("fd00::/64")})
}

func TestPolicyForServiceCoversAnyEndpoint(t *testing.T) {
	d := newDirectory()
	if _, ok := d.Resolve(service); ok {
		t.Error("a Service is resolved before anything is known")
	}
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("100.64.2.1:8080"), netip.MustParseAddrPort("100.64.4.1:8080")}
	d.Set(&State{Services: map[netip.AddrPort]Service{service: {endpoints, time.Hour}}, Policy: &policy.State{}})
	got, ok := d.Resolve(service)
	if !ok || !slices.Equal(got.Endpoints, endpoints) || got.Sticky != time.Hour {
		t.Errorf("a Service is %v, %v", got, ok)
	}
	if !d.Permits(client, endpoints[0]) {
		t.Error("without policies a connection is not permitted")
	}
}

func TestServiceAddressIsNotOutside(t *testing.T) {
	d := newDirectory()
	external, outside := netip.MustParseAddr("203.0.113.5"), netip.MustParseAddrPort("203.0.113.6:80")
	if !d.Claims(outside.Addr()) || d.PermitsOutside(client, outside) {
		t.Error("something is certain before anything is known")
	}
	d.Set(&State{External: []netip.Addr{external}, Policy: &policy.State{}})
	if !d.Claims(external) || d.Claims(outside.Addr()) || !d.PermitsOutside(client, outside) {
		t.Error("what a Service claims, or nobody does, is not known")
	}
}

func TestOnlyPodsAreCertain(t *testing.T) {
	d := newDirectory()
	node := netip.MustParseAddrPort("100.67.1.1:6443")
	pod := netip.MustParseAddrPort("100.64.2.1:8080")
	mixed := netip.MustParseAddrPort("100.66.0.8:80")
	d.Set(&State{Services: map[netip.AddrPort]Service{
		service: {Endpoints: []netip.AddrPort{node}}, mixed: {Endpoints: []netip.AddrPort{pod, node}},
	}, Policy: &policy.State{}})
	for address, want := range map[string]bool{
		"100.64.9.9:1": true, "[fd00::7]:1": true,
		"100.67.1.1:6443": false, "192.0.2.1:443": false, "100.66.0.7:81": false, service.String(): false, mixed.String(): false,
	} {
		to := netip.MustParseAddrPort(address)
		got, ok := d.Resolve(to)
		if ok != want || len(got.Endpoints) > 0 {
			t.Errorf("%s becomes %v, %v", to, got, ok)
		}
	}
}

func TestConnCarriesLargeState(t *testing.T) {
	own, other, err := linux.PacketPair("line")
	if err != nil {
		t.Fatal(err)
	}
	receiver, err := NewConn(other)
	if err != nil {
		t.Fatal(err)
	}
	sender := &Conn{own}
	said := &State{Services: map[netip.AddrPort]Service{}, Policy: &policy.State{}}
	for i := range 20000 {
		address := netip.AddrFrom4([4]byte{100, 66, byte(i >> 8), byte(i)})
		said.Services[netip.AddrPortFrom(address, 80)] = Service{Endpoints: []netip.AddrPort{netip.AddrPortFrom(client, uint16(i))}}
	}
	if err := sender.Send(said); err != nil {
		t.Fatal(err)
	}
	received, err := receiver.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(received.Services) != fmt.Sprint(said.Services) {
		t.Errorf("%d Services were heard, not the %d that were told", len(received.Services), len(said.Services))
	}
	for _, lost := range [][]netip.Addr{nil, {client}} {
		asked := receiver.Request(lost)
		if named, err := sender.AwaitRequest(); err != nil || asked != nil || !slices.Equal(named, lost) {
			t.Errorf("%v, %v, of %v: %v", asked, err, lost, named)
		}
	}
	sender.Close()
	if _, err := receiver.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	receiver.Close()
}
