package sited

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"
)

func TestPodsKeepTheirGateway(t *testing.T) {
	first, second, third := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.3")
	pods := []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3"), netip.MustParseAddr("10.128.0.4"), netip.MustParseAddr("10.128.0.5")}
	g := &gateways{}
	if got := g.assign(pods); len(got) != 0 {
		t.Fatalf("without gateways: %v", got)
	}
	g.set(map[string]netip.Addr{"gw1": first, "gw2": second})
	before := g.assign(pods)
	if used := count(before); used[first] != 2 || used[second] != 2 {
		t.Fatalf("two gateways for four pods: %v", before)
	}
	g.set(map[string]netip.Addr{"gw1": first, "gw2": second, "gw3": third})
	if got := g.assign(pods); !maps.Equal(got, before) {
		t.Errorf("a third gateway comes: %v, before %v", got, before)
	}
	g.set(map[string]netip.Addr{"gw2": second, "gw3": third})
	after := g.assign(pods)
	for pod, gateway := range before {
		if gateway == second && after[pod] != second {
			t.Errorf("pod %s has lost a gateway that lives", pod)
		}
	}
	if used := count(after); used[second] != 2 || used[third] != 2 {
		t.Errorf("after the loss of one: %v", after)
	}
	g.set(nil)
	if got := g.assign(pods); !maps.Equal(got, after) {
		t.Errorf("etcd knows of none: %v, before %v", got, after)
	}
	// One that is over is forgotten.
	if got := g.assign(pods[:1]); len(got) != 1 {
		t.Errorf("after the end of others: %v", got)
	}
}

// A gateway that only this node does not reach has no pods of it, unless there is no
// other one.
func TestPodsLeaveAGatewayThatIsNotReached(t *testing.T) {
	first, second := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")
	pods := []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")}
	asked := []netip.Addr{first, second}
	g, r := &gateways{}, reach{}
	g.set(map[string]netip.Addr{"gw1": first, "gw2": second})
	g.assign(pods)
	for round := range 2 * reachMisses {
		changed := g.setAway(r.count(asked, map[netip.Addr]bool{second: true}, false))
		if away := round >= reachMisses-1; changed != (round == reachMisses-1) || (count(g.assign(pods))[first] == 0) != away {
			t.Errorf("round %d: %v, changed: %t", round, g.assign(pods), changed)
		}
	}
	if !g.setAway(r.count(asked, map[netip.Addr]bool{first: true, second: true}, false)) {
		t.Error("an answer changes nothing")
	}
	before := g.assign(pods)
	for range 2 * reachMisses {
		if g.setAway(r.count(asked, nil, false)) || !maps.Equal(g.assign(pods), before) {
			t.Errorf("nobody answers: %v, before %v", g.assign(pods), before)
		}
	}
}

// A gateway with pods reaches itself, so that one other is enough to ask and to leave.
func TestPodsLeaveTheOnlyOtherGateway(t *testing.T) {
	host, other := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")
	pods := []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")}
	g, r := &gateways{}, reach{}
	g.set(map[string]netip.Addr{"gw2": other})
	g.assign(pods)
	if asked, _ := g.asked(host); len(asked) > 0 {
		t.Errorf("without a choice %v are asked", asked)
	}
	g.set(map[string]netip.Addr{"gw1": host, "gw2": other})
	for range reachMisses {
		asked, own := g.asked(host)
		if len(asked) != 1 || asked[0] != other || !own {
			t.Fatalf("asked are %v, own: %t", asked, own)
		}
		g.setAway(r.count(asked, nil, own))
	}
	if used := count(g.assign(pods)); used[host] != 2 {
		t.Errorf("pods are at %v", used)
	}
	// On another node both are others.
	if asked, own := g.asked(netip.MustParseAddr("192.168.0.3")); len(asked) != 2 || own {
		t.Errorf("asked are %v, own: %t", asked, own)
	}
}

// Pods that are alone on their nodes spread as well.
func TestLonePodsSpread(t *testing.T) {
	living := map[string]netip.Addr{"gw1": netip.MustParseAddr("192.168.0.1"), "gw2": netip.MustParseAddr("192.168.0.2")}
	all := map[netip.Addr]netip.Addr{}
	for i := range 100 {
		g := &gateways{living: living}
		maps.Copy(all, g.assign([]netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.128.0.%d", i+2))}))
	}
	for gateway, n := range count(all) {
		if n < 30 {
			t.Errorf("%s has %d of 100", gateway, n)
		}
	}
}

func count(chosen map[netip.Addr]netip.Addr) map[netip.Addr]int {
	used := map[netip.Addr]int{}
	for _, gateway := range chosen {
		used[gateway]++
	}
	return used
}
