package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/berthd/etcd/etcdtest"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

func TestPodsKeepTheirGateway(t *testing.T) {
	first, second, third := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("192.168.0.3")
	pods := []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3"), netip.MustParseAddr("10.128.0.4"), netip.MustParseAddr("10.128.0.5")}
	g := &Gateways{}
	if got := g.Assign(pods); len(got) != 0 {
		t.Fatalf("without gateways: %v", got)
	}
	g.set(map[string]netip.Addr{"gw1": first, "gw2": second}, nil)
	before := g.Assign(pods)
	if used := count(before); used[first] != 2 || used[second] != 2 {
		t.Fatalf("two gateways for four pods: %v", before)
	}
	g.set(map[string]netip.Addr{"gw1": first, "gw2": second, "gw3": third}, nil)
	if got := g.Assign(pods); !maps.Equal(got, before) {
		t.Errorf("a third gateway comes: %v, before %v", got, before)
	}
	g.set(map[string]netip.Addr{"gw2": second, "gw3": third}, nil)
	after := g.Assign(pods)
	for pod, gateway := range before {
		if gateway == second && after[pod] != second {
			t.Errorf("pod %s has lost a gateway that lives", pod)
		}
	}
	if used := count(after); used[second] != 2 || used[third] != 2 {
		t.Errorf("after the loss of one: %v", after)
	}
	g.set(nil, nil)
	if got := g.Assign(pods); !maps.Equal(got, after) {
		t.Errorf("etcd knows of none: %v, before %v", got, after)
	}
	// A pod that has ended is forgotten.
	if got := g.Assign(pods[:1]); len(got) != 1 {
		t.Errorf("after the end of others: %v", got)
	}
}

// A gateway that only this node cannot reach gets none of its pods, unless there is
// no other gateway.
func TestPodsLeaveUnreachableGateway(t *testing.T) {
	first, second := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")
	pods := []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")}
	asked := []netip.Addr{first, second}
	g, r := &Gateways{}, reach{}
	g.set(map[string]netip.Addr{"gw1": first, "gw2": second}, nil)
	g.Assign(pods)
	for round := range 2 * reachMisses {
		changed := g.setAway(r.count(asked, map[netip.Addr]bool{second: true}, false))
		if away := round >= reachMisses-1; changed != (round == reachMisses-1) || (count(g.Assign(pods))[first] == 0) != away {
			t.Errorf("round %d: %v, changed: %t", round, g.Assign(pods), changed)
		}
	}
	if !g.setAway(r.count(asked, map[netip.Addr]bool{first: true, second: true}, false)) {
		t.Error("an answer changes nothing")
	}
	before := g.Assign(pods)
	for range 2 * reachMisses {
		if g.setAway(r.count(asked, nil, false)) || !maps.Equal(g.Assign(pods), before) {
			t.Errorf("nobody answers: %v, before %v", g.Assign(pods), before)
		}
	}
}

// A gateway with pods always reaches itself, so one other gateway is enough to probe
// and to leave.
func TestPodsLeaveLastOtherGateway(t *testing.T) {
	host, other := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")
	pods := []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")}
	g, r := &Gateways{}, reach{}
	g.set(map[string]netip.Addr{"gw2": other}, nil)
	g.Assign(pods)
	if asked, _ := g.asked(host); len(asked) > 0 {
		t.Errorf("without a choice %v are asked", asked)
	}
	g.set(map[string]netip.Addr{"gw1": host, "gw2": other}, nil)
	for range reachMisses {
		asked, own := g.asked(host)
		if len(asked) != 1 || asked[0] != other || !own {
			t.Fatalf("asked are %v, own: %t", asked, own)
		}
		g.setAway(r.count(asked, nil, own))
	}
	if used := count(g.Assign(pods)); used[host] != 2 {
		t.Errorf("pods are at %v", used)
	}
	// On another node both gateways are others.
	if asked, own := g.asked(netip.MustParseAddr("192.168.0.3")); len(asked) != 2 || own {
		t.Errorf("asked are %v, own: %t", asked, own)
	}
}

// The host of a gateway whose daemon has stopped is still reachable, and its gateway
// gets no pods.
func TestGatewayWithoutDaemonIsReachable(t *testing.T) {
	shared := store.New(etcdtest.New(t), siteconf.Default())
	g := New("n0", netip.Addr{}, siteconf.Gateways{On: []string{"gw1", "gw2"}}, shared, slog.New(slog.DiscardHandler), func() {})
	first, second := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("192.168.0.2")
	for node, address := range map[string]netip.Addr{"gw1": first, "gw2": second, "n0": netip.MustParseAddr("192.168.0.3")} {
		if _, err := shared.Register(t.Context(), node, address); err != nil {
			t.Fatal(err)
		}
	}
	lives := func(node string, address netip.Addr) {
		if _, err := shared.Client().Put(t.Context(), store.GatewaysKey+node, address.String()); err != nil {
			t.Fatal(err)
		}
	}
	lives("gw2", second)
	follow := func() (end func()) {
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() {
			if err := g.Follow(ctx); err != nil {
				t.Error(err)
			}
		})
		return func() {
			cancel()
			ended.Wait()
		}
	}
	living := func(want int) func() bool {
		return func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return len(g.living) == want
		}
	}
	known := func(want ...netip.Addr) func() bool {
		return func() bool {
			all := g.All()
			slices.SortFunc(all, netip.Addr.Compare)
			return slices.Equal(slices.Compact(all), want)
		}
	}
	end := follow()
	testutil.Eventually(t, "one that lives and one that never did are known, and no other node", known(first, second))
	pods := []netip.Addr{netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")}
	if used := count(g.Assign(pods)); used[second] != 2 {
		t.Errorf("pods are at %v", used)
	}
	moved := netip.MustParseAddr("192.168.0.4")
	lives("gw1", moved)
	testutil.Eventually(t, "one that comes with another address is known by that", known(second, moved))
	if _, err := shared.Client().Delete(t.Context(), store.GatewaysKey, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "none lives", living(0))
	end()
	if !known(second, moved)() {
		t.Errorf("without any that lives %v are known", g.All())
	}
	// Act as if etcd were new.
	if _, err := shared.Client().Delete(t.Context(), store.NodesKey, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	lives("gw2", second)
	defer follow()()
	testutil.Eventually(t, "one lives", living(1))
	if !known(second, moved)() {
		t.Errorf("when etcd has forgotten nodes %v are known", g.All())
	}
}

// Pods that are each the only one on their node spread over the gateways too.
func TestSinglePodsSpread(t *testing.T) {
	living := map[string]netip.Addr{"gw1": netip.MustParseAddr("192.168.0.1"), "gw2": netip.MustParseAddr("192.168.0.2")}
	all := map[netip.Addr]netip.Addr{}
	for i := range 100 {
		g := &Gateways{living: living}
		maps.Copy(all, g.Assign([]netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.128.0.%d", i+2))}))
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

// A gateway is announced to nodes when its links forward, whatever was created again
// meanwhile.
func TestGatewayIsAnnouncedOnceItForwards(t *testing.T) {
	shared := store.New(etcdtest.New(t), siteconf.Default())
	g := New("n0", netip.MustParseAddr("127.0.0.1"), siteconf.Gateways{}, shared, slog.New(slog.DiscardHandler), func() {})
	announced := func() bool {
		got, err := shared.Client().Get(t.Context(), store.GatewaysKey+"n0")
		return err == nil && got.Count > 0
	}
	var looked atomic.Bool
	apply := func(ctx context.Context, check bool) error {
		if check && !announced() {
			looked.Store(true)
		}
		return ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	ended.Go(func() {
		if err := g.Announce(ctx, apply); err != nil {
			t.Error(err)
		}
	})
	defer ended.Wait()
	defer cancel()
	testutil.Eventually(t, "the gateway is announced", announced)
	if !looked.Load() {
		t.Error("a gateway is announced before its links were looked at")
	}
}
