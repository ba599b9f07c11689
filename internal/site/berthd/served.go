package berthd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
)

const (
	// servedDir holds a file ID-AFTER-SLOT for each run on this node that serves
	// under names, with the names in it. The run holds a shared lock on its file, as
	// a session does on its user's file.
	servedDir = "served"
	// maxServed bounds the number of such files of a job. Each is checked every
	// servedPeriod and occupies memory. A run may release its lock and keep the file
	// open. So a file without a lock is rewritten instead of replaced, and removed
	// only with its job. A run that locks its former file again keeps only names of
	// its own job.
	maxServed = 16
	// servedPeriod is the interval of the check whether runs have ended.
	servedPeriod = time.Second
)

// NameRun gives a job these names in addition to its others, for as long as the
// returned file is open somewhere. The answer contains the domain of the names and,
// if they have changed too often, how long it takes until they are known.
func (d *Daemon) NameRun(ctx context.Context, uid, job uint32, text string, answer map[string]string) ([]*os.File, error) {
	fail := func(err error) ([]*os.File, error) { return nil, fmt.Errorf("name job %d: %w", job, err) }
	if d.config.DNS.Program == "" {
		return fail(errors.New("this site's network has no names ('dns' in its configuration)"))
	}
	d.mu.Lock()
	local, err := d.ownJob(uid, job)
	if err != nil {
		d.mu.Unlock()
		return nil, err
	}
	a := local.Allocation
	d.mu.Unlock()
	d.serving.Lock()
	defer d.serving.Unlock()
	// Problems of other jobs do not matter here: the check each second logs them.
	all, _, err := d.heldByRuns()
	if err != nil {
		return fail(err)
	}
	here := all[named{id: a.ID(), after: a.After}]
	if here.problem != nil {
		return fail(here.problem)
	}
	if here.runs >= maxServed {
		return fail(d.noSlot(here.runs))
	}
	own, err := siteconf.ParseNames(text)
	if err != nil {
		return fail(err)
	}
	names, err := siteconf.ParseNames(strings.Join(append(here.names, own...), ","))
	if err != nil {
		return fail(err)
	}
	run, err := d.beginServing(a, own)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	wait, err := d.tellServed(ctx, a, names)
	if err != nil {
		return nil, errors.Join(err, run.Close())
	}
	answer["domain"] = a.Domains(d.config.Cluster, nil)[0]
	if wait > 0 {
		answer["wait"] = strconv.Itoa(int(wait/time.Second) + 1)
	}
	return []*os.File{run}, nil
}

func (d *Daemon) servedFile(name string) string {
	return filepath.Join(d.config.Run, servedDir, name)
}

func (d *Daemon) noSlot(runs int) error {
	return fmt.Errorf("%d runs have names on %s already: let some of them end", runs, d.node)
}

// beginServing returns the file that a run has to hold. It is open for reading only,
// because the run's user receives it. The caller holds d.serving.
func (d *Daemon) beginServing(a siteconf.Allocation, names []string) (*os.File, error) {
	for slot := range maxServed {
		run, err := takeSlot(d.servedFile(fmt.Sprintf("%s-%d-%d", a.ID(), a.After, slot)), names)
		if err != nil {
			return nil, fmt.Errorf("remember names of a run: %w", err)
		}
		if run != nil {
			return run, nil
		}
	}
	return nil, d.noSlot(maxServed)
}

// takeSlot locks a file and writes the names to it. It returns nil if another run
// holds the file.
func takeSlot(path string, names []string) (*os.File, error) {
	run, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	taken, err := tryLock(run, unix.LOCK_EX)
	if taken {
		err = os.WriteFile(path, []byte(strings.Join(names, ",")), 0o600)
	}
	if taken && err == nil {
		// Between the two locks, a former holder of the file may lock it again.
		taken, err = tryLock(run, unix.LOCK_SH)
	}
	if err != nil || !taken {
		return nil, errors.Join(err, run.Close())
	}
	return run, nil
}

// tryLock reports whether it locked the file. It does not wait for another holder.
func tryLock(file *os.File, how int) (bool, error) {
	err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// servings holds the number of runs of a job on this node, and all their names.
type servings struct {
	runs  int
	names []string
	// problem is set if some of the names could not be read.
	problem error
}

// heldByRuns returns the servings of all jobs here, and the problems with single
// files. It removes the files of jobs that are over. The caller holds d.serving.
func (d *Daemon) heldByRuns() (all map[named]servings, problem, err error) {
	entries, err := os.ReadDir(d.servedFile(""))
	if err != nil {
		return nil, nil, fmt.Errorf("list runs with names: %w", err)
	}
	all = map[named]servings{}
	var problems []error
	for _, entry := range entries {
		which, slot, current := d.slotOf(entry.Name())
		var names []string
		var err error
		if current {
			names, err = d.heldNames(entry.Name())
		}
		job := all[which]
		switch {
		case err != nil:
			err = fmt.Errorf("read names of a run: %w", err)
			problems = append(problems, err)
			job.problem = err
		case names != nil:
			job.runs++
			job.names = append(job.names, names...)
			slices.Sort(job.names)
			job.names = slices.Compact(job.names)
		case !slot:
			if err := os.Remove(d.servedFile(entry.Name())); err != nil {
				problems = append(problems, fmt.Errorf("forget names of a run: %w", err))
			}
		}
		if current {
			all[which] = job
		}
	}
	return all, errors.Join(problems...), nil
}

// slotOf parses the name of such a file. current means that its job is still here.
// slot means that a new run may get the file; otherwise the file is removed when its
// run ends.
func (d *Daemon) slotOf(name string) (which named, slot, current bool) {
	id, rest, _ := strings.Cut(name, "-")
	first, last, _ := strings.Cut(rest, "-")
	after, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return named{}, false, false
	}
	d.mu.Lock()
	local := d.local[id]
	current = local != nil && local.After == after
	d.mu.Unlock()
	n, err := strconv.Atoi(last)
	slot = err == nil && n >= 0 && n < maxServed && strconv.Itoa(n) == last
	return named{id: id, after: after}, slot && current, current
}

// heldNames reads such a file. It returns nil if no run holds it.
func (d *Daemon) heldNames(name string) ([]string, error) {
	file, err := os.Open(d.servedFile(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	free, err := tryLock(file, unix.LOCK_EX)
	if free || err != nil {
		return nil, err
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	names, err := siteconf.ParseNames(string(text))
	if err != nil {
		d.log.Warn("remove names of a run that are none", "file", name, "error", err)
		return nil, os.Remove(d.servedFile(name))
	}
	return append([]string{}, names...), nil
}

// tellServed writes to etcd the names under which runs of a job here serve. If the
// job's names have changed too often, it returns how long the change has to wait.
func (d *Daemon) tellServed(ctx context.Context, a siteconf.Allocation, names []string) (time.Duration, error) {
	d.mu.Lock()
	local := d.local[a.ID()]
	if local == nil || local.After != a.After {
		d.mu.Unlock()
		return 0, fmt.Errorf("name %s: it was released meanwhile", a.ID())
	}
	if slices.Equal(local.served.names, names) {
		local.waitsSince = time.Time{}
		d.mu.Unlock()
		return 0, nil
	}
	wait := d.beforeRenaming(local)
	if wait > 0 {
		wait += d.inFrontOf(local)
		d.mu.Unlock()
		return wait, nil
	}
	local.waitsSince = time.Time{}
	d.mu.Unlock()
	now, err := d.store.SetNames(ctx, a, d.node, names)
	if err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	d.keepNames(named{a.ID(), a.After, d.node}, now)
	return 0, nil
}

// inFrontOf puts a job in line for the next change of names in its network, and
// returns how long the jobs before it take. The caller holds the mutex.
func (d *Daemon) inFrontOf(local *localPod) time.Duration {
	if local.waitsSince.IsZero() {
		local.waitsSince = time.Now()
	}
	var wait time.Duration
	for _, other := range d.local {
		if other != local && other.Owner() == local.Owner() && !other.waitsSince.IsZero() && other.waitsSince.Before(local.waitsSince) {
			wait += namesPause
		}
	}
	return wait
}

// endServed removes the names of runs that have ended, and adds the names that had to
// wait.
func (d *Daemon) endServed(ctx context.Context) error {
	ticker := time.NewTicker(servedPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := d.lookAtServed(ctx); err != nil && ctx.Err() == nil {
			d.log.Warn("bring the names of runs up to date", "error", err)
		}
	}
}

func (d *Daemon) lookAtServed(ctx context.Context) error {
	d.serving.Lock()
	defer d.serving.Unlock()
	all, problem, err := d.heldByRuns()
	if err != nil {
		return err
	}
	d.mu.Lock()
	// In a network only one job may change its names at a time: start with the one
	// that has waited longest.
	locals := slices.SortedFunc(maps.Values(d.local), func(a, b *localPod) int { return a.waitsSince.Compare(b.waitsSince) })
	var first, rest []siteconf.Allocation
	for _, local := range locals {
		if local.waitsSince.IsZero() {
			rest = append(rest, local.Allocation)
		} else {
			first = append(first, local.Allocation)
		}
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	problems := []error{problem}
	for _, a := range append(first, rest...) {
		held := all[named{id: a.ID(), after: a.After}]
		if held.problem != nil {
			continue // its names stay as they are
		}
		_, err := d.tellServed(ctx, a, held.names)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
