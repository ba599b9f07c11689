package login

import (
	"context"
	"slices"
	"sync"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/job/slurm"
)

// Found is a job of this user, with the state of its cluster.
type Found struct {
	Job slurm.Queued
	// Session is open if the job has a cluster that can be reached. Otherwise Err
	// is the reason.
	Session *Session
	Summary Summary
	Err     error
}

// Clusters connects to the clusters of all unfinished jobs of this user. The caller
// closes the sessions. It skips jobs that are known to have no cluster, and jobs
// beyond the first lookLimit, because each connection takes a step.
func (p *Place) Clusters(ctx context.Context) ([]Found, error) {
	var own []Found
	if _, ok := p.local(persistent.Local); ok {
		f, err := p.Cluster(ctx, persistent.Local)
		if err != nil {
			return nil, err
		}
		own = append(own, f)
	}
	jobs, without, err := p.Jobs(ctx, true, nil)
	switch {
	case err != nil && own != nil:
		return own, nil // probably a machine without Slurm
	case err != nil:
		return nil, err
	}
	found := make([]Found, len(jobs))
	open := p.open()
	var looking sync.WaitGroup
	looked := 0
	for i, job := range jobs {
		found[i].Job = job
		target := Target{Job: job.ID}
		switch {
		case job.State != slurm.Running:
			continue
		case slices.Contains(without, job.ID):
			found[i].Err = problem(codeUnavailable, "no cluster")
			continue
		case slices.Contains(open, target):
		case looked == lookLimit:
			found[i].Err = problem(codeUnavailable, "not looked into")
			continue
		}
		looked++
		looking.Go(func() {
			session, err := p.Connect(ctx, target)
			if err != nil {
				found[i].Err = err
				return
			}
			found[i].Session = session
			found[i].Summary, found[i].Err = session.summarise(ctx)
		})
	}
	looking.Wait()
	var none []string
	reached := false
	for _, f := range found {
		reached = reached || f.Session != nil
		if f.Job.State == slurm.Running && f.Job.Elapsed > starting && f.Session == nil && !slices.Contains(without, f.Job.ID) {
			none = append(none, f.Job.ID)
		}
	}
	if reached && len(none) > 0 {
		_, _, _ = p.Jobs(ctx, false, none) // saves the next command from trying these jobs
	}
	return append(own, found...), nil
}

// Cluster connects to the cluster that a name means, see Resolve. The caller closes
// its session.
func (p *Place) Cluster(ctx context.Context, name string) (Found, error) {
	target, err := p.Resolve(ctx, name)
	if err != nil {
		return Found{}, err
	}
	session, err := p.Connect(ctx, target)
	if err != nil {
		return Found{}, err
	}
	if target.Job == persistent.Local {
		found := Found{Session: session, Job: session.queued()}
		found.Summary, found.Err = session.summarise(ctx)
		return found, nil
	}
	found := Found{Session: session, Job: slurm.Queued{ID: target.Job, Name: target.Job, State: slurm.Running, Left: -1}}
	job, ok, err := p.job(ctx, func(job slurm.Queued) bool { return job.ID == target.Job })
	if err != nil {
		session.Close()
		return Found{}, err
	}
	if ok {
		found.Job = job
	}
	found.Summary, found.Err = session.summarise(ctx)
	return found, nil
}
