package berthd

import (
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

// Addresses are freed when the controller has not known an active job twice in a row. Sessions,
// which it does not know, keep theirs.
func TestAddressesOfFinishedJobsAreFreed(t *testing.T) {
	s := newStore(t, testConfig())
	squeue := filepath.Join(t.TempDir(), "squeue")
	list := func(lines ...string) {
		t.Helper()
		text := fmt.Sprintf("#!/bin/sh\ncat <<END\n%s\nEND\n", strings.Join(lines, "\n"))
		if err := os.WriteFile(squeue, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	leased := make(chan struct{})
	go func() { _ = s.KeepLease(t.Context(), slog.New(slog.DiscardHandler), func() { close(leased) }) }()
	<-leased
	c := &collector{node: "n0", squeue: squeue, store: s, log: slog.New(slog.DiscardHandler)}
	for job := uint32(1); job <= 4; job++ {
		if _, err := s.Allocate(t.Context(), store.Request{Job: job, UID: 1000, Nodes: []string{"n0"}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Allocate(t.Context(), store.Request{UID: 1000, Login: "n0", Nodes: []string{"n0"}}); err != nil {
		t.Fatal(err)
	}
	missed := map[string]int{}
	look := func(when string, want ...string) {
		t.Helper()
		if err := c.collectOnce(t.Context(), missed); err != nil {
			t.Fatal(err)
		}
		known, err := s.List(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		var jobs []string
		for _, id := range slices.Sorted(maps.Keys(known.Jobs)) {
			if known.Jobs[id].Login == "" {
				jobs = append(jobs, id)
			} else {
				jobs = append(jobs, "session")
			}
		}
		if !slices.Equal(jobs, want) {
			t.Errorf("%s: %v have addresses, want %v", when, jobs, want)
		}
	}
	// A pending job, also a requeued one, has no nodes.
	list("1 R", "2 PD", "4 CG")
	look("after one look", "1", "2", "3", "4", "session")
	list("1 R", "3 R")
	look("after another", "1", "3", "4", "session")
	list("1 R")
	look("a job was active in between", "1", "3", "session")
	list()
	if err := os.WriteFile(squeue, []byte("#!/bin/sh\necho slurmctld is away >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.collectOnce(t.Context(), missed); err == nil || !strings.Contains(err.Error(), "slurmctld is away") {
		t.Errorf("without a controller: %v", err)
	}
	if _, err := s.Client().Delete(t.Context(), siteconf.Prefix+"networks/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	look("without jobs the controller is not asked")
}
