package berthd

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"berth.dev/berth/internal/site/siteconf"
)

const (
	// leaderLease is the longest delay, in seconds, that a killed collector causes for the next.
	leaderLease = 10

	collectorKey = siteconf.Prefix + "collector"
	squeueLimit  = 20 * time.Second
)

// register writes the address of this node's tunnels to etcd as soon as it answers, and again
// if etcd has lost it.
func (d *Daemon) register(ctx context.Context) error {
	ticker := time.NewTicker(d.config.Collect)
	defer ticker.Stop()
	last := int64(0)
	for {
		err := d.store.persist(ctx, d.log, "register this node", func(ctx context.Context) error {
			limited, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
			defer cancel()
			revision, err := d.store.Register(limited, d.node, d.host)
			d.metrics.etcdUp.Store(err == nil)
			if err == nil && revision < last {
				// A watch would stay silent until the new etcd has reached its revision.
				d.log.Warn("etcd has gone back: it was lost, or restored", "from", last, "to", revision)
				d.relist()
			}
			if err == nil {
				last = revision
			}
			return err
		})
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// collect frees the addresses of finished jobs that their nodes did not release, because an
// epilog or a node was lost. Only one node at a time, the elected one, does so.
func (d *Daemon) collect(ctx context.Context) error {
	return d.store.persist(ctx, d.log, "collect addresses", func(ctx context.Context) error {
		session, err := concurrency.NewSession(d.store.client, concurrency.WithTTL(leaderLease), concurrency.WithContext(ctx))
		if err != nil {
			return fmt.Errorf("get a lease: %w", err)
		}
		defer session.Close()
		// If etcd has lost the lease, nobody would ever be elected.
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			select {
			case <-session.Done():
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := concurrency.NewElection(session, collectorKey).Campaign(ctx, d.node); err != nil {
			return fmt.Errorf("stand for election: %w", err)
		}
		missed := map[string]int{}
		ticker := time.NewTicker(d.config.Collect)
		defer ticker.Stop()
		for {
			if err := d.collectOnce(ctx, missed); err != nil {
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

func (d *Daemon) collectOnce(ctx context.Context, missed map[string]int) error {
	// List addresses before jobs, so that addresses allocated in between are not considered.
	known, _, err := d.store.Networks(ctx, networksKey)
	if err != nil {
		return err
	}
	var active map[uint32]bool
	if slices.ContainsFunc(slices.Collect(maps.Values(known)), func(a siteconf.Allocation) bool { return a.Login == "" }) {
		// Ask the controller only if there are jobs.
		if active, err = d.activeJobs(ctx); err != nil {
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
		if err := d.store.Free(ctx, a); err != nil {
			return err
		}
		d.log.Warn("freed the addresses of a job that is over, without its nodes having said so", "job", id, "uid", a.UID)
	}
	return nil
}

// activeJobs returns the jobs that have nodes. A pending job, also a requeued one, has none.
func (d *Daemon) activeJobs(ctx context.Context) (map[uint32]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, squeueLimit)
	defer cancel()
	command := exec.CommandContext(ctx, d.config.Squeue, "--noheader", "--all", "--format=%A %t")
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
