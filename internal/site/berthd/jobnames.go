package berthd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
)

const (
	// freeNames is the number of changes of a job's names on a node that need no pause. A job
	// usually names its services when it begins.
	freeNames = 3
	// namesPause is the minimum time between further changes in a network, on a node. etcd
	// keeps all changes for an hour and has room for 2 GB. A job of 1,000 nodes that changes
	// 1 KB on each node every 30 s writes some 130 MB in an hour.
	namesPause = 30 * time.Second
)

// jobNames keeps the names that users and runs have given to jobs with a pod here, in case
// etcd loses them, and decides when they may change again.
type jobNames struct {
	// node is Slurm's name of this node.
	node  string
	store *store.Store

	mu sync.Mutex
	// jobs holds the names of each job, by ID.
	jobs map[string]*namedJob
	// changed holds the time of the last change here that was subject to namesPause, by the
	// owner of the network.
	changed map[string]time.Time
}

// namedJob holds the names of one job.
type namedJob struct {
	siteconf.Allocation
	// user holds the names from its user, on any node, and runs the names of services of runs
	// here, both as they are in etcd.
	user, runs store.GivenNames
	// changes counts the changes here.
	changes int
	// waitsSince is the time of the oldest change to names of runs here that still waits.
	waitsSince time.Time
}

// add begins to keep the names of a job, which has none yet.
func (n *jobNames) add(a siteconf.Allocation) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.jobs[a.ID()] = &namedJob{Allocation: a}
}

// remove forgets the names of a job, and with the last job of a network the time of its last
// change.
func (n *jobNames) remove(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	former := n.jobs[id]
	if former == nil {
		return
	}
	delete(n.jobs, id)
	for _, job := range n.jobs {
		if job.Owner() == former.Owner() {
			return
		}
	}
	delete(n.changed, former.Owner())
}

// job returns the job of an allocation, or nil. The caller holds the mutex.
func (n *jobNames) job(id string, after int64) *namedJob {
	if job := n.jobs[id]; job != nil && job.After == after {
		return job
	}
	return nil
}

// keeps reports whether an allocation has names here.
func (n *jobNames) keeps(id string, after int64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.job(id, after) != nil
}

// setUser replaces the names that the user has given to a job.
func (n *jobNames) setUser(ctx context.Context, a siteconf.Allocation, names []string) error {
	n.mu.Lock()
	job := n.job(a.ID(), a.After)
	if job == nil {
		n.mu.Unlock()
		return store.ErrReleased(a)
	}
	if job.user.Names != nil && slices.Equal(job.user.Names, names) {
		n.mu.Unlock()
		return nil
	}
	if wait := n.beforeChange(job); wait > 0 {
		n.mu.Unlock()
		return fmt.Errorf("name job %d: names have just changed on %s: try again in %s", a.Job, n.node, wait.Truncate(time.Second)+time.Second)
	}
	n.mu.Unlock()
	ctx, cancel := store.Limited(ctx)
	defer cancel()
	now, err := n.store.SetNames(ctx, a, "", names)
	if err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	n.remember(store.PartOf(a, ""), now)
	return nil
}

// setRuns replaces the names under which runs of a job here serve. If the job's names have
// changed too often, it returns how long the change has to wait.
func (n *jobNames) setRuns(ctx context.Context, a siteconf.Allocation, names []string) (time.Duration, error) {
	n.mu.Lock()
	job := n.job(a.ID(), a.After)
	if job == nil {
		n.mu.Unlock()
		return 0, store.ErrReleased(a)
	}
	if slices.Equal(job.runs.Names, names) {
		job.waitsSince = time.Time{}
		n.mu.Unlock()
		return 0, nil
	}
	wait := n.beforeChange(job)
	if wait > 0 {
		wait += n.inFrontOf(job)
		n.mu.Unlock()
		return wait, nil
	}
	job.waitsSince = time.Time{}
	n.mu.Unlock()
	now, err := n.store.SetNames(ctx, a, n.node, names)
	if err != nil {
		return 0, errors.Join(err, context.Cause(ctx))
	}
	n.remember(store.PartOf(a, n.node), now)
	return 0, nil
}

// beforeChange returns the time until a job's names may change. If it is 0, the change is
// counted. The caller holds the mutex.
func (n *jobNames) beforeChange(job *namedJob) time.Duration {
	if job.changes < freeNames {
		job.changes++
		return 0
	}
	if wait := namesPause - time.Since(n.changed[job.Owner()]); wait > 0 {
		return wait
	}
	n.changed[job.Owner()] = time.Now()
	return 0
}

// inFrontOf queues a job for the next change of names in its network, and returns how long
// the jobs before it take. The caller holds the mutex.
func (n *jobNames) inFrontOf(job *namedJob) time.Duration {
	if job.waitsSince.IsZero() {
		job.waitsSince = time.Now()
	}
	var wait time.Duration
	for _, other := range n.jobs {
		if other != job && other.Owner() == job.Owner() && !other.waitsSince.IsZero() && other.waitsSince.Before(job.waitsSince) {
			wait += namesPause
		}
	}
	return wait
}

// inOrder returns all jobs, and first those whose changes wait, the longest wait before others:
// in a network only one job may change its names at a time.
func (n *jobNames) inOrder() []siteconf.Allocation {
	n.mu.Lock()
	defer n.mu.Unlock()
	var first, rest []siteconf.Allocation
	for _, job := range slices.SortedFunc(maps.Values(n.jobs), func(a, b *namedJob) int { return a.waitsSince.Compare(b.waitsSince) }) {
		if job.waitsSince.IsZero() {
			rest = append(rest, job.Allocation)
		} else {
			first = append(first, job.Allocation)
		}
	}
	return append(first, rest...)
}

// remember keeps the names of a job here in case etcd loses them. It ignores an older
// revision, which may arrive after a change on another node.
func (n *jobNames) remember(which store.Part, now store.GivenNames) {
	n.mu.Lock()
	defer n.mu.Unlock()
	job := n.job(which.ID, which.After)
	if job == nil || which.Node != "" && which.Node != n.node {
		return
	}
	if kept := job.kept(which.Node); now.Revision > kept.Revision {
		*kept = now
	}
}

// kept returns the remembered names of runs on this node, or without a node the names that the
// user gave the job.
func (j *namedJob) kept(node string) *store.GivenNames {
	if node == "" {
		return &j.user
	}
	return &j.runs
}

// restore writes names of jobs here that etcd has lost. Names in etcd always win over
// remembered ones, because revisions start at 1 again after etcd has lost everything.
func (n *jobNames) restore(ctx context.Context, mine []siteconf.Allocation, known store.Listing) error {
	for _, a := range mine {
		for _, node := range []string{"", n.node} {
			if err := n.restoreOne(ctx, a, node, known); err != nil {
				return err
			}
		}
	}
	return nil
}

func (n *jobNames) restoreOne(ctx context.Context, a siteconf.Allocation, node string, known store.Listing) error {
	n.mu.Lock()
	job := n.job(a.ID(), a.After)
	if job == nil {
		n.mu.Unlock()
		return nil
	}
	kept := job.kept(node).Names
	n.mu.Unlock()
	owner := store.PartOf(a, node)
	now, there := known.Names[owner]
	if !there {
		// If another node restores them first, the watch from this revision reports it.
		now = store.GivenNames{Names: kept, Revision: known.Revision}
	}
	if !there && kept != nil {
		again, done, err := n.store.RestoreNames(ctx, a, node, kept)
		if err != nil {
			return err
		}
		if done {
			now, known.Names[owner] = again, again
		}
	}
	n.mu.Lock()
	*job.kept(node) = now
	n.mu.Unlock()
	return nil
}
