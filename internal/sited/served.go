package sited

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site"
)

const (
	// servedDir has a file for each run on this node that serves something by names, with
	// these in it. The run holds a shared lock on it, as a session does on its user's.
	servedDir = "served"
	// maxServed is how many there may be of a job: each is a file in memory, and a look at
	// it each servedPeriod.
	maxServed = 16
	// servedPeriod is how often it is looked whether a run has ended.
	servedPeriod = time.Second
)

// Serve gives a job these names beside all others that it has, as long as the file that
// comes back is open somewhere. It says below which domain they are, and for how long they
// are not known yet, if they have changed too often.
func (d *Daemon) Serve(ctx context.Context, uid, job uint32, text string, answer map[string]string) ([]*os.File, error) {
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
	all, err := d.served()
	if err != nil {
		return fail(err)
	}
	here := all[named{id: a.ID(), after: a.After}]
	if here.runs >= maxServed {
		return fail(fmt.Errorf("%d runs have names on %s already: let some of them end", here.runs, d.node))
	}
	own, err := site.ParseNames(text)
	if err != nil {
		return fail(err)
	}
	names, err := site.ParseNames(strings.Join(append(here.names, own...), ","))
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
		return nil, errors.Join(err, run.Close(), os.Remove(run.Name()))
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

// beginServing returns what a run has to hold. It is for reading, as the run's user has it.
func (d *Daemon) beginServing(a site.Allocation, names []string) (*os.File, error) {
	fail := func(err error) (*os.File, error) { return nil, fmt.Errorf("remember names of a run: %w", err) }
	file, err := os.CreateTemp(d.servedFile(""), fmt.Sprintf("%s-%d-", a.ID(), a.After))
	if err != nil {
		return fail(err)
	}
	_, err = file.WriteString(strings.Join(names, ","))
	if err := errors.Join(err, file.Close()); err != nil {
		return fail(errors.Join(err, os.Remove(file.Name())))
	}
	run, err := os.Open(file.Name())
	if err != nil {
		return fail(errors.Join(err, os.Remove(file.Name())))
	}
	if err := unix.Flock(int(run.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return fail(errors.Join(err, run.Close(), os.Remove(run.Name())))
	}
	return run, nil
}

// servings are the runs of a job on this node, and all of their names.
type servings struct {
	runs  int
	names []string
}

// served are those of all jobs here. What no run holds any more, or is of a job that is
// over, it removes. The caller holds d.serving.
func (d *Daemon) served() (map[named]servings, error) {
	entries, err := os.ReadDir(d.servedFile(""))
	if err != nil {
		return nil, fmt.Errorf("list runs with names: %w", err)
	}
	all := map[named]servings{}
	for _, entry := range entries {
		which, names, err := d.heldNames(entry.Name())
		if err != nil {
			return nil, err
		}
		if names == nil {
			if err := os.Remove(d.servedFile(entry.Name())); err != nil {
				return nil, fmt.Errorf("forget names of a run: %w", err)
			}
			continue
		}
		run := all[which]
		run.runs++
		run.names = append(run.names, names...)
		slices.Sort(run.names)
		run.names = slices.Compact(run.names)
		all[which] = run
	}
	return all, nil
}

// heldNames reads such a file; there are no names where it is of no use any more.
func (d *Daemon) heldNames(name string) (named, []string, error) {
	id, rest, _ := strings.Cut(name, "-")
	number, _, _ := strings.Cut(rest, "-")
	after, err := strconv.ParseInt(number, 10, 64)
	d.mu.Lock()
	local := d.local[id]
	over := err != nil || local == nil || local.After != after
	d.mu.Unlock()
	if over {
		return named{}, nil, nil
	}
	fail := func(err error) (named, []string, error) {
		return named{}, nil, fmt.Errorf("read names of a run: %w", err)
	}
	file, err := os.Open(d.servedFile(name))
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return named{}, nil, nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return fail(err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		return fail(err)
	}
	names, err := site.ParseNames(string(text))
	if err != nil {
		d.log.Warn("remove names of a run that are none", "job", id, "error", err)
		return named{}, nil, nil
	}
	return named{id: id, after: after}, append([]string{}, names...), nil
}

// tellServed has etcd know by which names runs of a job here serve something. It says how
// long that has to wait because a job's names have changed too often.
func (d *Daemon) tellServed(ctx context.Context, a site.Allocation, names []string) (time.Duration, error) {
	d.mu.Lock()
	local := d.local[a.ID()]
	if local == nil || local.After != a.After {
		d.mu.Unlock()
		return 0, fmt.Errorf("name %s: it was released meanwhile", a.ID())
	}
	if slices.Equal(local.served.names, names) {
		d.mu.Unlock()
		return 0, nil
	}
	wait := d.beforeRenaming(local)
	d.mu.Unlock()
	if wait > 0 {
		return wait, nil
	}
	now, err := d.store.SetNames(ctx, a, d.node, names)
	if err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	d.keepNames(named{a.ID(), a.After, d.node}, now)
	return 0, nil
}

// endServed takes back names of runs that have ended, and gives those that had to wait.
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
	all, err := d.served()
	if err != nil {
		return err
	}
	d.mu.Lock()
	var jobs []site.Allocation
	for _, local := range d.local {
		jobs = append(jobs, local.Allocation)
	}
	d.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, etcdLimit, errNoEtcd)
	defer cancel()
	var problems []error
	for _, a := range jobs {
		_, err := d.tellServed(ctx, a, all[named{id: a.ID(), after: a.After}].names)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
