package berthd

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/site/siteconf"
)

func TestRefusedConnectionsAreReported(t *testing.T) {
	address := netip.MustParseAddr("10.128.0.2")
	a := siteconf.Allocation{Job: 7, UID: 1001, User: "alice", Pods: []siteconf.Pod{{Node: "n1", Address: address}}}
	counts := map[netip.Addr]uint64{}
	file := filepath.Join(t.TempDir(), "audit.log")
	log := slog.New(slog.DiscardHandler)
	m := &metrics{pods: func() (jobs, sessions int) { return 1, 0 }}
	r := &refusals{
		flows: 500, pods: &pods{node: "n1", local: map[string]*localPod{a.ID(): {Allocation: a}}}, metrics: m, log: log,
		counts: func(context.Context) (map[netip.Addr]uint64, error) { return counts, nil },
		audit:  &audit{path: file, node: "n1", log: log, now: time.Now},
	}
	// The last count is smaller: it has started again.
	for _, count := range []uint64{0, 3, 3, 5, 1} {
		counts = map[netip.Addr]uint64{address: count, netip.MustParseAddr("10.128.0.9"): 0}
		if err := r.look(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"event":"limited"`) || !strings.Contains(lines[0], "policy.flows: 3 packets of further connections were refused: a pod may have 500 connections") ||
		!strings.Contains(lines[1], "policy.flows: 2 packets") || !strings.Contains(lines[2], `"user":"alice"`) {
		t.Errorf("the audit log has %s", text)
	}
	var page strings.Builder
	if err := m.write(&page); err != nil || !strings.Contains(page.String(), "\nberthd_flows_refused_total 6\n") {
		t.Errorf("%v, metrics: %s", err, page.String())
	}
}
