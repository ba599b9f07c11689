package berthd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/berthd/store"
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

// namedRuns keeps the names of services of runs here, for as long as the runs hold their files.
type namedRuns struct {
	// dir has the files.
	dir string
	// node is Slurm's name of this node.
	node  string
	names *jobNames
	log   *slog.Logger

	// mu is held while the files are read, or their names are written to etcd.
	mu sync.Mutex
}

// add gives a job these names in addition to its others, for as long as the returned file is
// open somewhere. If they have changed too often, it returns how long it takes until they are
// known.
func (r *namedRuns) add(ctx context.Context, a siteconf.Allocation, text string) (*os.File, time.Duration, error) {
	fail := func(err error) (*os.File, time.Duration, error) {
		return nil, 0, fmt.Errorf("name job %d: %w", a.Job, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Problems of other jobs do not matter here: the check each second logs them.
	all, _, err := r.held()
	if err != nil {
		return fail(err)
	}
	here := all[store.PartOf(a, "")]
	if here.problem != nil {
		return fail(here.problem)
	}
	if here.runs >= maxServed {
		return fail(r.noSlot(here.runs))
	}
	own, err := siteconf.ParseNames(text)
	if err != nil {
		return fail(err)
	}
	names, err := siteconf.ParseNames(strings.Join(append(here.names, own...), ","))
	if err != nil {
		return fail(err)
	}
	run, err := r.begin(a, own)
	if err != nil {
		return fail(err)
	}
	ctx, cancel := store.Limited(ctx)
	defer cancel()
	wait, err := r.names.setRuns(ctx, a, names)
	if err != nil {
		return nil, 0, errors.Join(err, run.Close())
	}
	return run, wait, nil
}

func (r *namedRuns) file(name string) string { return filepath.Join(r.dir, name) }

func (r *namedRuns) noSlot(runs int) error {
	return fmt.Errorf("%d runs have names on %s already: let some of them end", runs, r.node)
}

// begin returns the file that a run has to hold. It is open for reading only,
// because the run's user receives it. The caller holds the mutex.
func (r *namedRuns) begin(a siteconf.Allocation, names []string) (*os.File, error) {
	for slot := range maxServed {
		run, err := takeSlot(r.file(fmt.Sprintf("%s-%d-%d", a.ID(), a.After, slot)), names)
		if err != nil {
			return nil, fmt.Errorf("remember names of a run: %w", err)
		}
		if run != nil {
			return run, nil
		}
	}
	return nil, r.noSlot(maxServed)
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

// jobRuns holds the number of runs of a job on this node, and all their names.
type jobRuns struct {
	runs  int
	names []string
	// problem is set if some of the names could not be read.
	problem error
}

// held returns the runs of all jobs here, and the problems with single
// files. It removes the files of jobs that are over. The caller holds the mutex.
func (r *namedRuns) held() (all map[store.Part]jobRuns, problem, err error) {
	entries, err := os.ReadDir(r.file(""))
	if err != nil {
		return nil, nil, fmt.Errorf("list runs with names: %w", err)
	}
	all = map[store.Part]jobRuns{}
	var problems []error
	for _, entry := range entries {
		which, slot, current := r.slotOf(entry.Name())
		var names []string
		var err error
		if current {
			names, err = r.heldNames(entry.Name())
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
			if err := os.Remove(r.file(entry.Name())); err != nil {
				problems = append(problems, fmt.Errorf("forget names of a run: %w", err))
			}
		}
		if current {
			all[which] = job
		}
	}
	return all, errors.Join(problems...), nil
}

// slotOf parses the name of a file in dir. current reports whether the file's job is still
// here, and slot whether a new run may get the file; otherwise the file is removed when
// its run ends.
func (r *namedRuns) slotOf(name string) (which store.Part, slot, current bool) {
	id, rest, _ := strings.Cut(name, "-")
	first, last, _ := strings.Cut(rest, "-")
	after, err := strconv.ParseInt(first, 10, 64)
	if err != nil {
		return store.Part{}, false, false
	}
	current = r.names.keeps(id, after)
	n, err := strconv.Atoi(last)
	slot = err == nil && n >= 0 && n < maxServed && strconv.Itoa(n) == last
	return store.Part{ID: id, After: after}, slot && current, current
}

// heldNames returns the names in a file, or nil if no run holds the file. It removes a file
// with invalid names.
func (r *namedRuns) heldNames(name string) ([]string, error) {
	file, err := os.Open(r.file(name))
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
		r.log.Warn("remove invalid names of a run", "file", name, "error", err)
		return nil, os.Remove(r.file(name))
	}
	return append([]string{}, names...), nil
}

// follow removes the names of runs that have ended, and adds the names that had to wait,
// until the context ends.
func (r *namedRuns) follow(ctx context.Context) error {
	return repeat(ctx, servedPeriod, func() {
		if err := r.update(ctx); err != nil && ctx.Err() == nil {
			r.log.Warn("bring the names of runs up to date", "error", err)
		}
	})
}

// update writes the names of the runs that hold their files to etcd.
func (r *namedRuns) update(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, problem, err := r.held()
	if err != nil {
		return err
	}
	ctx, cancel := store.Limited(ctx)
	defer cancel()
	problems := []error{problem}
	for _, a := range r.names.inOrder() {
		held := all[store.PartOf(a, "")]
		if held.problem != nil {
			continue // its names stay as they are
		}
		_, err := r.names.setRuns(ctx, a, held.names)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}
