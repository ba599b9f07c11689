package node

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/notify"
)

// A pod that has its share of conntrack is named once, and has further connections after
// it has closed some. Entries are only read while conntrack is half full.
func TestPodWithItsShareOfConntrackIsNamed(t *testing.T) {
	hostile, other, outside := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("192.0.2.1")
	counts := map[netip.Addr]int{}
	reads := 0
	var said []string
	var rules string
	s := &podShares{
		plan: cluster.Plan{
			Paths:     cluster.Paths{Run: t.TempDir()},
			Addresses: cluster.Addresses{Family: cluster.Family{Pods: netip.MustParsePrefix("10.0.0.0/16")}},
		},
		log: slog.New(slog.DiscardHandler), said: newNaming(),
		notice: func(text string) { said = append(said, text) },
		nft: func(_ context.Context, path string) error {
			text, err := os.ReadFile(path)
			rules = string(text)
			return err
		},
		setting: func(name string) (int, error) {
			if name == "max" {
				return 1000, nil
			}
			used := 0
			for _, count := range counts {
				used += count
			}
			return used, nil
		},
		count: func() (map[netip.Addr]int, error) { reads++; return counts, nil },
	}
	for _, step := range []struct {
		hostile, other, outside int
		full                    []netip.Addr
		reads, said             int
	}{
		{hostile: 500},
		{hostile: 700, other: 10, reads: 1},
		{hostile: 740, other: 10, outside: 10, reads: 2, full: []netip.Addr{hostile}, said: 1},
		{hostile: 100, outside: 890, reads: 3, full: []netip.Addr{hostile}, said: 1},
		{hostile: 100, outside: 10, reads: 3, said: 1},
		{hostile: 900, reads: 4, full: []netip.Addr{hostile}, said: 1},
	} {
		counts = map[netip.Addr]int{hostile: step.hostile, other: step.other, outside: step.outside}
		if err := s.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s.full, step.full) || reads != step.reads || len(said) != step.said {
			t.Errorf("%+v: full %v, %d reads, said %q", step, s.full, reads, said)
		}
		if got := strings.Contains(rules, "full-ip { 10.0.0.1 }"); got != (step.full != nil) {
			t.Errorf("%+v: rules\n%s", step, rules)
		}
	}
	if want := "delayed new connections of pod 10.0.0.1: it has its share of the 1000 that the kernel remembers"; said[0] != want {
		t.Errorf("said %q, want %q", said[0], want)
	}
	s.setting = func(string) (int, error) { return 0, fs.ErrNotExist }
	if err := s.look(t.Context()); err != nil {
		t.Errorf("without conntrack: %v", err)
	}
	s.setting = func(string) (int, error) { return 0, errors.ErrUnsupported }
	if err := s.look(t.Context()); err == nil {
		t.Error("no error of a file that cannot be read")
	}
}

// namingShares returns shares of a node with the pods 10.0.0.0/24 and fd00::/64 that list
// pods, and append notices to said.
func namingShares(pods *[]netip.Addr, said *[]string) *podShares {
	list := func() ([]netip.Addr, error) { return slices.Clone(*pods), nil }
	return &podShares{
		plan: cluster.Plan{Addresses: cluster.Addresses{
			Family: cluster.Family{NodePods: netip.MustParsePrefix("10.0.0.0/24")},
			IPv6:   &cluster.Family{NodePods: netip.MustParsePrefix("fd00::/64")},
		}},
		flooded: newNaming(), connected: newNaming(),
		notice: func(text string) { *said = append(*said, text) },
		floods: list, rejected: list,
	}
}

// A pod that floods the name server with queries or connections is named once for each.
// A forged address outside the node's range is not named.
func TestFloodingPodIsNamed(t *testing.T) {
	hostile, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")
	forged := []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("10.0.1.1"), netip.MustParseAddr("fd01::2")}
	var pods []netip.Addr
	var said []string
	s := namingShares(&pods, &said)
	for _, check := range []func(context.Context) error{s.nameFloods, s.nameRejected} {
		for _, pods = range [][]netip.Addr{nil, {hostile}, {hostile}, nil, forged, {hostile, other}} {
			if err := check(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if want := []string{
		"dropped DNS queries of pod 10.0.0.1: it sent more than 20000 in a second",
		"dropped DNS queries of pod fd00::2: it sent more than 20000 in a second",
		"reset connections of pod 10.0.0.1 to the name server: it has 128 already",
		"reset connections of pod fd00::2 to the name server: it has 128 already",
	}; !slices.Equal(said, want) {
		t.Errorf("said %q, want %q", said, want)
	}
}

// A pod that sends with ever more addresses of the node causes maxNamed notices at most,
// and no more addresses are remembered.
func TestNoticesOfForgedAddressesAreBounded(t *testing.T) {
	var pods []netip.Addr
	var said []string
	s := namingShares(&pods, &said)
	for address := netip.MustParseAddr("fd00::1"); len(pods) < 3*maxNamed; address = address.Next() {
		pods = append(pods, address)
		if err := s.nameFloods(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) != maxNamed || len(s.flooded.last) != maxNamed {
		t.Fatalf("%d notices, %d addresses remembered, want %d", len(said), len(s.flooded.last), maxNamed)
	}
	for i, text := range said {
		if last := i == maxNamed-1; strings.HasSuffix(text, "; no further pods are named") != last {
			t.Errorf("notice %d of %d: %q", i+1, maxNamed, text)
		}
	}
}

// A pod with the address of an ended one is named.
func TestPodWithAddressOfEndedPodIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hostile := []netip.Addr{netip.MustParseAddr("10.0.0.1")}
		var pods []netip.Addr
		var said []string
		s := namingShares(&pods, &said)
		for _, step := range []struct {
			pods []netip.Addr
			wait time.Duration
			said int
		}{
			{pods: hostile, said: 1},
			{pods: hostile, wait: namedFor, said: 1},
			{pods: hostile, wait: namedFor, said: 1}, // it was there meanwhile
			{pods: nil, wait: namedFor + 1, said: 1},
			{pods: hostile, said: 2},
		} {
			time.Sleep(step.wait)
			pods = step.pods
			if err := s.nameFloods(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(said) != step.said {
				t.Errorf("%+v: said %q", step, said)
			}
		}
	})
}

// A kernel may lack an expression that one of the scripts needs. The others are loaded.
func TestSharesDoNotNeedConnlimit(t *testing.T) {
	var loaded, said strings.Builder
	s := newPodShares(cluster.Plan{Paths: cluster.Paths{Run: t.TempDir()}}, Options{Log: slog.New(slog.NewTextHandler(&said, nil)), Notifier: &notify.Notifier{}})
	s.nft = func(_ context.Context, path string) error {
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), "ct count") {
			return errors.ErrUnsupported
		}
		loaded.Write(text)
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // run returns after it has loaded the scripts
	s.run(ctx)
	for _, rule := range []string{"@full-ip drop", "limit rate over"} {
		if !strings.Contains(loaded.String(), rule) {
			t.Errorf("no rule with %q", rule)
		}
	}
	if strings.Count(said.String(), "\n") != 1 || !strings.Contains(said.String(), "Pods have no bound of TCP connections to the name server") {
		t.Errorf("said %q", said.String())
	}
}

// When a set of loaded rules cannot be listed, the log does not say that the rules are missing.
func TestSharesThatCannotBeListedAreInForce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		s := newPodShares(cluster.Plan{Paths: cluster.Paths{Run: t.TempDir()}}, Options{Log: slog.New(slog.NewTextHandler(&said, nil)), Notifier: &notify.Notifier{}})
		s.nft = func(context.Context, string) error { return nil }
		s.setting = func(string) (int, error) { return 0, fs.ErrNotExist }
		list := func() ([]netip.Addr, error) { return nil, syscall.EMFILE }
		s.floods, s.rejected = list, list
		ctx, cancel := context.WithTimeout(t.Context(), 3*sharesPeriod)
		defer cancel()
		s.run(ctx)
		for _, want := range []string{"Pods that flood the name server are not named", "Pods with too many TCP connections to the name server are not named"} {
			if strings.Count(said.String(), want) != 1 {
				t.Errorf("not said once: %q", want)
			}
		}
		if strings.Count(said.String(), "\n") != 2 {
			t.Errorf("said %q", said.String())
		}
	})
}
