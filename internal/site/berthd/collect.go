package berthd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

const (
	// leaderLease is the longest delay, in seconds, that a killed collector causes for the next.
	leaderLease = 10
	squeueLimit = 20 * time.Second
)

// collector frees the addresses of jobs that are over.
type collector struct {
	// node is Slurm's name of this node.
	node string
	// squeue is the program that lists jobs, and period the time between two lists.
	squeue string
	period time.Duration
	store  *store.Store
	log    *slog.Logger
}

// run frees the addresses of finished jobs that their nodes did not release, because an
// epilog or a node was lost. Only one node at a time, the elected one, does so.
func (c *collector) run(ctx context.Context) error {
	return c.store.Persist(ctx, c.log, "collect addresses", func(ctx context.Context) error {
		session, err := concurrency.NewSession(c.store.Client(), concurrency.WithTTL(leaderLease), concurrency.WithContext(ctx))
		if err != nil {
			return fmt.Errorf("get a lease: %w", err)
		}
		defer session.Close()
		// If etcd has lost the lease, this node would wait for its election forever.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-session.Done():
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := concurrency.NewElection(session, store.CollectorKey).Campaign(ctx, c.node); err != nil {
			return fmt.Errorf("stand for election: %w", err)
		}
		missed := map[string]int{}
		ticker := time.NewTicker(c.period)
		defer ticker.Stop()
		for {
			if err := c.collectOnce(ctx, missed); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return errors.New("the lease is lost")
			case <-ticker.C:
			}
		}
	})
}

// collectOnce frees the addresses of each job that was over in this call and in the last one.
// missed counts such calls by allocation ID.
func (c *collector) collectOnce(ctx context.Context, missed map[string]int) error {
	// List addresses before jobs, so that addresses allocated in between are not considered.
	listing, err := c.store.List(ctx, "")
	if err != nil {
		return err
	}
	known := listing.Jobs
	var active map[uint32]bool
	if slices.ContainsFunc(slices.Collect(maps.Values(known)), func(a siteconf.Allocation) bool { return a.Login == "" }) {
		// Ask the controller only if there are jobs.
		if active, err = c.activeJobs(ctx); err != nil {
			return err
		}
	}
	for id := range missed {
		if a, there := known[id]; !there || active[a.Job] {
			delete(missed, id)
		}
	}
	for id, a := range known {
		// The controller does not know sessions; their allocations have a lease.
		if active[a.Job] || a.Login != "" {
			continue
		}
		if missed[id]++; missed[id] < 2 {
			continue
		}
		if err := c.store.Free(ctx, a); err != nil {
			return err
		}
		c.log.Warn("freed the addresses of a job that is over, without its nodes having said so", "job", id, "uid", a.UID)
	}
	return nil
}

// activeJobs returns the jobs that have nodes. A pending job, also a requeued one, has none.
func (c *collector) activeJobs(ctx context.Context) (map[uint32]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, squeueLimit)
	defer cancel()
	command := exec.CommandContext(ctx, c.squeue, "--noheader", "--all", "--format=%A %t")
	var errs bytes.Buffer
	command.Stderr = &errs
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("ask the controller for its jobs: %w: %s", err, strings.TrimSpace(errs.String()))
	}
	active := map[uint32]bool{}
	scanner := bufio.NewScanner(bytes.NewReader(out))
	for scanner.Scan() {
		id, state, _ := strings.Cut(scanner.Text(), " ")
		job, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read squeue's line %q: %w", scanner.Text(), err)
		}
		if strings.TrimSpace(state) != "PD" {
			active[uint32(job)] = true
		}
	}
	return active, nil
}
