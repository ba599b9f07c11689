package login

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/job/slurm"
)

// lookLimit bounds the jobs to search for a cluster, because each search takes a
// step.
const lookLimit = 16

// jobName matches a user's name for a job: its number, optionally with an array
// index or a component, and the step of a cluster.
var jobName = regexp.MustCompile(`^(\d+)([_+]\d+)?(?:\.(\d+|batch))?$`)

// IsJobName reports whether a word can name a job or this machine's cluster.
func IsJobName(word string) bool { return word == persistent.Local || jobName.MatchString(word) }

// Resolve returns the cluster that a name means. Without a name it returns the
// cluster that BERTH_JOB names, the cluster of this process's allocation, this
// machine's cluster, or the user's only cluster.
func (p *Place) Resolve(ctx context.Context, name string) (Target, error) {
	named := name != ""
	for _, from := range []string{EnvJob, "SLURM_JOB_ID"} {
		if name == "" {
			name = p.getenv(from)
		}
	}
	if name == "" {
		if _, ok := p.local(persistent.Local); ok {
			return Target{Job: persistent.Local}, nil
		}
		return p.only(ctx)
	}
	if name == persistent.Local {
		return Target{Job: name}, nil
	}
	parts := jobName.FindStringSubmatch(name)
	if parts == nil {
		return Target{}, problem(codeUsage, "%q is not a job: give a Slurm job or step id, such as 12, 12_3 or 12.0", name)
	}
	target := Target{Job: parts[1], Step: parts[3]}
	switch {
	case parts[2] == "" && named:
		return p.element(ctx, target)
	case parts[2] == "" || parts[2][0] == '+':
		return target, nil // all components of a job share one cluster
	}
	job, ok, err := p.job(ctx, func(job slurm.Queued) bool { return job.Name == parts[1]+parts[2] })
	if err != nil {
		return Target{}, err
	}
	if ok {
		target.Job = job.ID
		return target, nil
	}
	return Target{}, stateProblem(parts[1]+parts[2], slurm.Queued{}, false, 0)
}

// element returns the only running element if the target is an array. Slurm uses
// the array's number for the last element, too.
func (p *Place) element(ctx context.Context, target Target) (Target, error) {
	jobs, _, err := p.Jobs(ctx, false, nil)
	if err != nil {
		return target, nil // the next step queries Slurm again
	}
	elements := slices.DeleteFunc(jobs, func(job slurm.Queued) bool {
		return job.State != slurm.Running || !strings.HasPrefix(job.Name, target.Job+"_")
	})
	switch len(elements) {
	case 0:
	case 1:
		target.Job = elements[0].ID
	default:
		return Target{}, problem(codeUsage, "job %s is an array: name one of %s", target.Job, describe(elements))
	}
	return target, nil
}

// job returns one of this user's unfinished jobs. It queries Slurm if the cached
// list lacks the job.
func (p *Place) job(ctx context.Context, is func(slurm.Queued) bool) (slurm.Queued, bool, error) {
	for _, fresh := range []bool{false, true} {
		jobs, _, err := p.Jobs(ctx, fresh, nil)
		if err != nil {
			return slurm.Queued{}, false, err
		}
		if i := slices.IndexFunc(jobs, is); i >= 0 {
			return jobs[i], true, nil
		}
	}
	return slurm.Queued{}, false, nil
}

// Jobs returns this user's unfinished jobs, and the jobs known to have no cluster.
// Unless fresh is set, the list may be half a minute old. without names jobs that
// the caller found to have no cluster.
func (p *Place) Jobs(ctx context.Context, fresh bool, without []string) ([]slurm.Queued, []string, error) {
	for _, target := range p.open() {
		ctx, cancel := context.WithTimeout(ctx, serverTimeout)
		defer cancel()
		conn, err := p.dial(ctx, target)
		if err != nil {
			continue
		}
		stop := context.AfterFunc(ctx, func() { conn.Close() })
		_, answer, err := exchange(conn, question{Do: doJobs, Fresh: fresh, Without: without})
		stop()
		conn.Close()
		if err == nil {
			return answer.Jobs, answer.Without, nil
		}
	}
	jobs, err := slurm.Queue(ctx, os.Getuid(), p.ask)
	if err != nil {
		return nil, nil, problem(codeUnavailable, "ask Slurm for your jobs: %v", err)
	}
	return jobs, without, nil
}

// serverTimeout bounds a request to the process that keeps a tunnel, which may have
// to query Slurm.
const serverTimeout = 35 * time.Second

// only returns the user's only cluster.
func (p *Place) only(ctx context.Context) (Target, error) {
	jobs, without, err := p.Jobs(ctx, false, nil)
	if err != nil {
		return Target{}, err
	}
	var running, others []slurm.Queued
	for _, job := range jobs {
		switch {
		case job.State != slurm.Running:
			others = append(others, job)
		case !slices.Contains(without, job.ID):
			running = append(running, job)
		}
	}
	if len(running) == 1 && len(without) == 0 {
		return Target{Job: running[0].ID}, nil
	}
	if len(running) > lookLimit {
		return Target{}, problem(codeUsage, "%d jobs of yours are running: name the one that is meant", len(running))
	}
	clusters, none := p.look(ctx, running)
	switch len(clusters) {
	case 0:
		return Target{}, p.noCluster(running, others)
	case 1:
		if len(none) > 0 {
			_, _, _ = p.Jobs(ctx, false, none) // saves the next command from trying these jobs
		}
		return Target{Job: clusters[0].ID}, nil
	}
	return Target{}, problem(codeUsage, "%d clusters of yours are running: name one of %s", len(clusters), describe(clusters))
}

// starting is the age of a job below which its cluster may still be starting.
const starting = time.Minute

// look opens tunnels into all jobs, to find out which jobs have a cluster. A job that
// cannot be reached counts as one without a cluster, unless it has only just begun.
func (p *Place) look(ctx context.Context, jobs []slurm.Queued) (clusters []slurm.Queued, none []string) {
	found := make([]bool, len(jobs))
	var looking sync.WaitGroup
	for i, job := range jobs {
		looking.Go(func() {
			session, err := p.Connect(ctx, Target{Job: job.ID})
			if found[i] = err == nil; err == nil {
				session.Close()
			}
		})
	}
	looking.Wait()
	for i, job := range jobs {
		if found[i] {
			clusters = append(clusters, job)
		} else if job.Elapsed > starting {
			none = append(none, job.ID)
		}
	}
	return clusters, none
}

func (p *Place) noCluster(running, others []slurm.Queued) error {
	switch {
	case len(running) > 0:
		return problem(codeUnavailable, "none of your running jobs has a cluster that can be reached: %s", describe(running))
	case len(others) == 1:
		return stateProblem(others[0].Name, others[0], true, others[0].UID)
	case len(others) > 1:
		return problem(codeUnavailable, "no job of yours is running: %s", describe(others))
	}
	return problem(codeNoJob, "you have no job: 'sbatch' a script with 'berth run' in it, or 'srun berth run ...' in another terminal")
}

// describe lists jobs in one line.
func describe(jobs []slurm.Queued) string {
	var all []string
	for _, job := range jobs {
		all = append(all, Describe(job))
	}
	return strings.Join(all, ", ")
}

// Describe returns a job's number and the properties that distinguish it from the
// user's other jobs.
func Describe(job slurm.Queued) string {
	state := ""
	if job.State != slurm.Running {
		state = ", " + strings.ToLower(job.State)
	}
	nodes := "nodes"
	if job.Nodes == 1 {
		nodes = "node"
	}
	return fmt.Sprintf("%s (%s, %d %s%s)", job.Name, job.JobName, job.Nodes, nodes, state)
}
