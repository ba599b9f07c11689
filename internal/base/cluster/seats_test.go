package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestSeatsHaveAddressesOfTheirOwn(t *testing.T) {
	spec := Spec{Seats: 3, PodsPerNode: 100}
	offers := []Offer{{Host: "n1"}, {Host: "n2"}}
	plans, err := Design(spec, offers)
	if err != nil {
		t.Fatal(err)
	}
	places := plans[0].Places()
	if len(places) != 5 || len(plans[0].Members) != 2 || !plans[0].Several() {
		t.Fatalf("%d places, %d members", len(places), len(plans[0].Members))
	}
	for seat := range spec.Seats {
		plan, err := DesignSeat(spec, offers, seat, SeatName("n1", "57"), Offer{Host: "n1-57", RunID: "r", Node: Node{MaxPods: 250}})
		if err != nil {
			t.Fatal(err)
		}
		if plan.Index != 2+seat || plan.Node.Name != "n1-57" || plan.RunID != "r" || plan.Node.MaxPods != 100 || plan.Head() || plan.Control() {
			t.Errorf("seat %d: %+v", seat, plan)
		}
		if place := places[plan.Index]; place.Address != plan.Addresses.Node || !slices.Contains(place.Prefixes, plan.Addresses.NodePods) {
			t.Errorf("seat %d has %s, and the others know %+v", seat, plan.Addresses.Node, place)
		}
		if plan.Addresses.APIServer != plans[0].Addresses.Node || plan.PodMTU != plans[0].PodMTU || len(plan.Peers()) > 0 {
			t.Errorf("seat %d does not fit the cluster: %+v", seat, plan)
		}
	}
	for _, seat := range []int{-1, 3} {
		if _, err := DesignSeat(spec, offers, seat, "n1-57", Offer{}); err == nil {
			t.Errorf("there is a seat %d", seat)
		}
	}
}

func TestHostThatDoesNotFitGetsNoSeat(t *testing.T) {
	offers := []Offer{{Host: "n1", IPv6: ToOutside}}
	spec := Spec{Seats: 1}
	plans, err := Design(spec, offers)
	if err != nil {
		t.Fatal(err)
	}
	fits := Offer{Host: "n2-57", IPv6: ToOutside}
	block := netip.PrefixFrom(plans[0].Addresses.Pods.Addr(), 24)
	for words, offer := range map[string]Offer{
		"":                   fits,
		"a route of this":    {Host: "n2-57", IPv6: ToOutside, Used: []netip.Prefix{block}},
		"has no IPv6":        {Host: "n2-57"},
		"takes no rules":     {Host: "n2-57", IPv6: ToOutside, RefusedIPv6: "no nft_fib_ipv6"},
		"with --ip-family i": {Host: "n2-57", IPv6: ToOutside, Used: []netip.Prefix{plans[0].Addresses.IPv6.Pods}},
	} {
		_, err := DesignSeat(spec, offers, 0, "n2-57", offer)
		if words == "" && err != nil || words != "" && (err == nil || !strings.Contains(err.Error(), words)) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

// Nodes of other jobs keep their addresses when the head of their cluster moves.
func TestNextHeadKeepsAddresses(t *testing.T) {
	outside := func(run string) []Offer { return []Offer{{Host: "n1", RunID: run, IPv6: ToOutside}} }
	spec := Spec{Seats: 2}
	before, err := BlocksOf(spec, outside("job-1-0"))
	if err != nil || !before.IPv6.IsValid() {
		t.Fatalf("%v (%v)", before, err)
	}
	spec.Kept = before
	for name, test := range map[string]struct {
		offers []Offer
		kept   bool
	}{
		"another start":    {outside("job-1-1"), true},
		"a route":          {[]Offer{{Host: "n2", IPv6: ToOutside, Used: []netip.Prefix{before.IPv4}}}, false},
		"an IPv6 route":    {[]Offer{{Host: "n2", IPv6: ToOutside, Used: []netip.Prefix{before.IPv6}}}, false},
		"no IPv6":          {[]Offer{{Host: "n2"}}, false},
		"too many members": {slices.Repeat(outside("job-1-1"), 1100), false},
	} {
		got, err := BlocksOf(spec, test.offers)
		if err != nil || (got == before) != test.kept {
			t.Errorf("%s: %v (%v), was %v", name, got, err, before)
		}
	}
	// A cluster with only IPv4 stays so on a host with IPv6.
	if spec.Kept, err = BlocksOf(Spec{Seats: 2}, []Offer{{Host: "n1"}}); err != nil {
		t.Fatal(err)
	}
	if got, err := BlocksOf(spec, outside("job-1-1")); err != nil || got != spec.Kept {
		t.Errorf("%v (%v), was %v", got, err, spec.Kept)
	}
}

func TestNamesOfSeats(t *testing.T) {
	for _, test := range [][3]string{
		{"n2", "57", "n2-57"}, {"Gpu_1", "57", "gpu-1-57"}, {strings.Repeat("a", 70), "4711", strings.Repeat("a", 58) + "-4711"},
	} {
		if got := SeatName(test[0], test[1]); got != test[2] || len(got) > LongestName {
			t.Errorf("job %s on %s: %q, want %q", test[1], test[0], got, test[2])
		}
	}
}

func TestOptionsOfElasticClusters(t *testing.T) {
	for words, spec := range map[string]Spec{
		"--elastic -1":           {Seats: -1, NodesPerHost: 1},
		"--elastic 4096":         {Seats: 4096, NodesPerHost: 1},
		"with --ha":              {Seats: 1, NodesPerHost: 1, HighlyAvailable: true},
		"with --nodes-per-host:": {Seats: 1, NodesPerHost: 2},
	} {
		spec.Stay = true
		if err := spec.Validate(); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
	if err := (Spec{Seats: DefaultSeats, NodesPerHost: 1, Stay: true}).Validate(); err != nil {
		t.Error(err)
	}
}
