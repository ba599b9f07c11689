package login

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/access/tunnel"
	"berth.dev/berth/internal/job/slurm"
)

const (
	// answerTimeout bounds the wait for an answer, before a query of Slurm shows
	// whether the job still runs.
	answerTimeout = 3 * time.Second
	// The far end must answer once in each watchPeriod. While Slurm reports that
	// the job runs, the far end may miss silentLimit periods. If other nodes reach
	// the cluster, briefSilence replaces silentLimit.
	watchPeriod  = 30 * time.Second
	silentLimit  = 4
	briefSilence = 1
)

// enter opens the tunnel. If that takes long or fails, it asks Slurm for the
// reason.
func (k *tunnelServer) enter(ctx context.Context) (*tunnel.Tunnel, *step, error) {
	entering, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := time.AfterFunc(answerTimeout, func() {
		if state := k.jobProblem(entering); state != nil {
			cancel(state)
		}
	})
	defer slow.Stop()
	way := entrance{config: k.config, ask: k.place.ask, leave: func(s *step) { k.leaving.Go(s.end) }}
	t, s, err := way.enter(entering)
	if err == nil {
		return t, s, nil
	}
	return nil, nil, k.explain(ctx, err)
}

// explain returns an error with the reason why there is no tunnel.
func (k *tunnelServer) explain(ctx context.Context, err error) error {
	target := k.config.Target
	if known, ok := errors.AsType[*Problem](err); ok {
		return known
	}
	if refusal, ok := errors.AsType[*tunnel.Refusal](err); ok {
		switch refusal.Reason {
		case tunnel.Several:
			var names []string
			for _, step := range refusal.Steps {
				names = append(names, target.Job+"."+step)
			}
			return problem(codeUsage, "job %s has several clusters: name one of %s", target.Job, strings.Join(names, ", "))
		case tunnel.None:
			return problem(codeUnavailable, "%s: it has not been started yet, or it has ended; 'squeue --me' shows what runs", refusal.Text)
		}
		return problem(codeUnavailable, "reach the cluster of job %s: %s", target, refusal.Text)
	}
	if state := k.jobProblem(ctx); state != nil {
		return state
	}
	said := ""
	if entry, ok := errors.AsType[*entryError](err); ok {
		said = entry.said
	}
	if strings.Contains(said, "execve") {
		return problem(codeUnavailable, "start berth on a node of job %s: %s; where berth is elsewhere on the nodes: export %s=/path/to/bin/berth", target, said, EnvRemotePath)
	}
	if said == "" && !errors.Is(err, io.EOF) {
		said = err.Error()
	}
	if said == "" {
		said = "the step ended before it said anything"
	}
	return problem(codeUnavailable, "reach into job %s: %s", target, said)
}

func (k *tunnelServer) jobProblem(ctx context.Context) *Problem {
	return k.place.jobProblem(ctx, k.config.Target.Job)
}

// JobProblem returns the reason why a job cannot be reached. It returns nil if the
// job runs or Slurm does not answer.
func (p *Place) JobProblem(ctx context.Context, job string) error {
	if problem := p.jobProblem(ctx, job); problem != nil {
		return problem
	}
	return nil
}

func (p *Place) jobProblem(ctx context.Context, name string) *Problem {
	job, ok, err := slurm.QueuedJob(ctx, name, p.ask)
	if err != nil {
		return nil
	}
	return stateProblem(name, job, ok, os.Getuid())
}

// endings lists the states of jobs that did not end by themselves.
var endings = []string{"BOOT_FAIL", "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}

// endLimit bounds the wait for the final state of a job that is ending; endPoll
// is the interval of the queries.
const (
	endLimit = 10 * time.Second
	endPoll  = 500 * time.Millisecond
)

// CutShort returns the reason why the job of a cluster was ended, for a command
// that followed the job to its end. It returns nil if the job still runs or ended
// by itself.
func (p *Place) CutShort(ctx context.Context, target Target) error {
	ctx, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	for target.Job != persistent.Local {
		job, ok, err := slurm.QueuedJob(ctx, target.Job, p.ask)
		switch {
		case err != nil || !ok:
			return nil
		case slices.Contains(endings, job.State):
			return stateProblem(target.Job, job, ok, os.Getuid())
		case job.State != slurm.Completing:
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(endPoll):
		}
	}
	return nil
}

// stateProblem returns the reason why a job in this state cannot be reached, or nil if the
// job runs. ok reports whether Slurm knows the job.
func stateProblem(name string, job slurm.Queued, ok bool, uid int) *Problem {
	switch {
	case !ok:
		return problem(codeNoJob, "there is no job %s, or it ended some time ago: 'berth ls' lists yours", name)
	case job.UID != uid:
		return problem(codeNoJob, "job %s is not yours", name)
	case job.State == slurm.Pending && strings.HasPrefix(job.Reason, "JobHeld"):
		return problem(codeUnavailable, "job %s is held and has not started: 'scontrol release %s' lets it go", name, name)
	case job.State == slurm.Pending, job.State == slurm.Configuring:
		return problem(codeUnavailable, "job %s has not started (%s, %s): try again when it runs; 'squeue --start -j %s' says when that may be", name, job.State, job.Reason, name)
	case job.State == slurm.Suspended:
		return problem(codeUnavailable, "job %s is suspended: 'scontrol resume %s' continues it", name, name)
	case job.State == slurm.Running:
		return nil
	case job.State == slurm.Completing:
		return problem(codeUnavailable, "job %s is ending", name)
	}
	return problem(codeUnavailable, "job %s has ended (%s)", name, job.State)
}

// watch ends the process when the tunnel ends or is silent for too long.
func (k *tunnelServer) watch(ctx context.Context) {
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	for silent := 0; ; {
		select {
		case <-ctx.Done():
			k.finish(k.lost("its process on this host received a signal to end"))
			return
		case <-k.tunnel.Done():
			k.finish(k.lostStep(ctx))
			return
		case <-ticker.C:
		}
		if k.tunnel.Ping(answerTimeout) {
			silent = 0
			continue
		}
		if k.jobProblem(ctx) != nil {
			silent = 0 // the job may be suspended; srun ends with the job
			continue
		}
		if silent++; silent == silentLimit || silent == briefSilence && len(k.elsewhere()) > 0 {
			k.finish(k.lost(k.silence()))
			return
		}
	}
}

// silence says that the node with the far end has missed its periods.
func (k *tunnelServer) silence() string { return "node " + k.reply.Node + " no longer answers" }

// elsewhere returns the other nodes that reach the cluster.
func (k *tunnelServer) elsewhere() []string { return k.tunnel.Answer.Others }

func (k *tunnelServer) lost(why string) *Problem {
	lost := problem(codeUnavailable, "the tunnel into job %s was lost: %s", k.config.Target, why)
	lost.Elsewhere = k.elsewhere()
	return lost
}

// lostStep returns the reason why the far end ended.
func (k *tunnelServer) lostStep(ctx context.Context) *Problem {
	if why := k.tunnel.Reason(); why != "" {
		return k.lost(why)
	}
	select {
	case <-k.step.ended:
	case <-time.After(answerTimeout):
	}
	if said := k.step.said.text(); said != "" {
		return k.lost(said)
	}
	if state := k.jobProblem(ctx); state != nil {
		return k.lost(state.Text)
	}
	return k.lost("its step on node " + k.reply.Node + " was ended")
}

// check checks that the far end answers, for a command that is about to use it.
func (k *tunnelServer) check(ctx context.Context) error {
	if k.tunnel.Ping(answerTimeout) {
		return nil
	}
	if state := k.jobProblem(ctx); state != nil {
		return state
	}
	if len(k.elsewhere()) > 0 {
		lost := k.lost(k.silence())
		k.finish(lost)
		return lost
	}
	return problem(codeUnavailable, "reach into job %s: node %s does not answer", k.config.Target, k.reply.Node)
}
