package pilots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// prefixOf returns the start of the UIDs of a cluster's pilots.
func prefixOf(job string) string { return uidPrefix + job + "-" }

// clusterOf returns the job of the cluster that a pilot is for, or "" for a job that is no pilot.
func clusterOf(uid string) string {
	rest, ok := strings.CutPrefix(uid, uidPrefix)
	job, _, found := strings.Cut(rest, "-")
	if !ok || !found {
		return ""
	}
	return job
}

// cancelPending cancels all pilots that have not started.
func (l *Loop) cancelPending(ctx context.Context) error {
	var ids []string
	unknown := false
	l.mu.Lock()
	for _, p := range l.pilots {
		switch {
		case p.Job == "":
			unknown = unknown || p.exists // its job may have been submitted
		case p.final == nil && !p.started():
			ids = append(ids, p.Job)
		}
	}
	l.mu.Unlock()
	err := cancelThose(ctx, l.Ask, ids)
	if unknown {
		err = errors.Join(err, CancelPending(ctx, l.Ask, l.Submitted, l.Job))
	}
	return err
}

// CancelPending cancels the pilots of a cluster that have not started. submitted returns jobs of
// the user, with the UIDs of their pilots.
func CancelPending(ctx context.Context, ask slurm.Ask, submitted func(context.Context) ([]queue.State, error), job string) error {
	jobs, err := submitted(ctx)
	if err != nil {
		return fmt.Errorf("look for the pilots that wait: %w", err)
	}
	var ids []string
	for _, one := range jobs {
		if clusterOf(one.UID) == job && one.State == slurm.Pending {
			ids = append(ids, one.ID)
		}
	}
	return cancelThose(ctx, ask, ids)
}

// cancelThose cancels jobs that have not started, with one command.
func cancelThose(ctx context.Context, ask slurm.Ask, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	slices.Sort(ids)
	if _, err := ask(ctx, append([]string{"scancel", "--state=PENDING"}, ids...)...); err != nil {
		return fmt.Errorf("cancel the pilots that wait: %w", err)
	}
	return nil
}

// settleStrangers deals with pilots that have no record here. It repeats until Slurm has answered
// everything.
func (l *Loop) settleStrangers(ctx context.Context) {
	for pause := longer(0); ; pause = longer(pause) {
		err := l.settleStrangersOnce(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		l.Log.Debug(fmt.Sprintf("look for pilots without a record: %v; trying again in %s", err, pause))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// settleStrangersOnce cancels pending pilots that nobody will release or needs: of clusters whose
// jobs have ended, and of an earlier loop of this job. A loop that is killed together with its
// cluster leaves them. Pilots of this job that run were submitted after the last time that the
// state was saved: they join this cluster, so it adopts them.
func (l *Loop) settleStrangersOnce(ctx context.Context) error {
	jobs, err := l.Submitted(ctx)
	if err != nil {
		return err
	}
	// Read after the pilots: a cluster that has started meanwhile is in it.
	output, err := l.Ask(ctx, "squeue", "--noheader", "--all", fmt.Sprintf("--user=%d", os.Getuid()), "--format=%A")
	if err != nil {
		return err
	}
	alive := strings.Fields(string(output))
	if !slices.Contains(alive, l.Job) {
		return fmt.Errorf("squeue does not list the cluster's job %s", l.Job)
	}
	var failed error
	for _, one := range jobs {
		of := clusterOf(one.UID)
		l.mu.Lock()
		known := l.pilots[one.UID] != nil
		l.mu.Unlock()
		switch {
		case of == "" || known:
		case one.State == slurm.Pending && (of == l.Job || !slices.Contains(alive, of)):
			l.Log.Info("a pilot of an earlier cluster is cancelled", "pilot", one.UID, "job", one.ID)
			failed = errors.Join(failed, l.Slurm.Cancel(ctx, one.ID))
		case one.State != slurm.Pending && of == l.Job && !queue.Ended(one.State):
			l.adopt(one)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settled = true
	l.changed()
	return failed
}

// adopt makes a pilot of a job that runs without a record. Its batch script has the request. Without
// the script, the pilot takes no pod that waits, because the size of its nodes is unknown until they
// join. Without pods it leaves.
func (l *Loop) adopt(job queue.State) {
	p := &pilot{record: record{UID: job.UID, status: status{Job: job.ID, Released: true, State: job.State, Hosts: job.Nodes}}}
	var err error
	if p.Request, err = l.requestOf(job.UID); err != nil {
		l.Log.Debug(err.Error())
		hosts, err := slurm.ExpandHosts(job.Nodes)
		if err != nil {
			hosts = nil
		}
		p.Request, p.Joined = plan.Request{Nodes: max(1, len(hosts))}, true
	}
	l.Log.Info("a pilot without a record is adopted", "pilot", job.UID, "job", job.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pilots[job.UID] = p
	l.changed()
}
