package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/allocation"
)

// stepPoll is the interval between questions to Slurm whether a step has ended.
const stepPoll = 100 * time.Millisecond

// ownGrace replaces a grace of 0. It is so long that the grace period of each pod applies
// instead.
const ownGrace = time.Hour

// quietEnd is the time after which Down explains why it still waits.
const quietEnd = 2 * time.Second

// Down ends the cluster of a job and returns when it is gone. Without a job it
// ends the cluster of this process's job, or of this machine. If grace is 0, pods
// have their own grace periods.
func Down(ctx context.Context, options Options, job string, grace time.Duration) (int, error) {
	if job == "" {
		job = jobOf(options.Getenv)
	}
	allowed := "the time that they ask for; --grace limits it"
	if grace == 0 {
		grace = ownGrace
	} else {
		allowed = grace.String()
	}
	cluster, ok := persistent.Find(rundir.MemoryPlaces(options.Getenv), job)
	if ok && cluster.Head == "" {
		slow := time.AfterFunc(quietEnd, func() {
			options.Log.Info("waiting for pods to end, which have " + allowed)
		})
		defer slow.Stop()
		outcome, err := cluster.End(ctx, persistent.EndRequest{Grace: grace}, func(outcome persistent.Outcome) {
			if outcome.Asked > 0 {
				options.Log.Info(fmt.Sprintf("%d of %d pods have ended; ending the cluster", outcome.Ended, outcome.Asked))
			}
		})
		if err != nil {
			return 0, exitcode.Wrap(exitcode.Unavailable, err)
		}
		options.Log.Info(describeEnd(job, outcome))
		options.awaitParent(ctx, job)
		return 0, nil
	}
	head := cluster.Head
	if !ok && job != persistent.Local && options.hops() == 0 {
		var err error
		if _, head, err = slurm.StepNamed(ctx, job, upStep, slurm.AskLong); err != nil {
			return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("look for the cluster of job %s: %w", job, err))
		}
	}
	if head == "" || options.hops() >= maxHops {
		if job == persistent.Local {
			return 0, exitcode.Wrap(exitcode.Unavailable, errors.New("no cluster of yours is up on this machine; 'berth up' starts one, and 'berth down JOB' ends that of a job"))
		}
		return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("no cluster is up in job %s; 'berth up' in it starts one, a cluster of 'berth run' ends with that, and 'scancel %s' ends the job", job, job))
	}
	code, err := options.endOn(ctx, job, head)
	if code == 0 && err == nil {
		options.awaitParent(ctx, job)
	}
	return code, err
}

// awaitParent waits, for downLimit at most, until the step of the ended cluster is over.
// Only then can another cluster start. A command of Slurm that fails, as on a busy node, is
// repeated.
func (o Options) awaitParent(ctx context.Context, job string) {
	ctx, cancel := context.WithTimeout(ctx, downLimit)
	defer cancel()
	awaitPersistentParent(ctx, o.Getenv, job)
	for job != persistent.Local && ctx.Err() == nil {
		id, _, err := slurm.StepNamed(ctx, job, upStep, slurm.AskSlurm)
		if err == nil && id == "" || slurm.IsUnknownJob(err) || errors.Is(err, exec.ErrNotFound) {
			return
		}
		select {
		case <-time.After(stepPoll):
		case <-ctx.Done():
		}
	}
}

// endOn runs this command again, in a step on the cluster's head, and returns its exit
// code.
func (o Options) endOn(ctx context.Context, job, head string) (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find berth's own file: %w", err)
	}
	heterogeneous, err := slurm.HasComponents(ctx, job, slurm.AskLong)
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("ask Slurm for job %s: %w", job, err))
	}
	command := slurm.IntoCommand(job, head, heterogeneous, append([]string{self}, os.Args[1:]...)...)
	step := exec.CommandContext(ctx, command[0], command[1:]...)
	step.Cancel = func() error { return step.Process.Signal(allocation.EndingSignal(context.Cause(ctx))) }
	step.Env = append(slurm.IntoEnv(os.Environ()), o.hop())
	step.Stdout, step.Stderr = os.Stdout, os.Stderr
	err = step.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start a step in job %s: %w; add the directory of Slurm commands to PATH", job, err))
	}
	return exitcode.OfStatus(step.ProcessState.Sys().(syscall.WaitStatus)), nil
}

func describeEnd(job string, outcome persistent.Outcome) string {
	whose := "the cluster of job " + job
	if job == persistent.Local {
		whose = "the cluster of this machine"
	}
	switch left := outcome.Asked - outcome.Ended; {
	case outcome.Asked == 0:
		return whose + " has ended; no pod ran"
	case left == 0:
		return fmt.Sprintf("%s has ended, and its pods (%d) before it, in order", whose, outcome.Asked)
	default:
		return fmt.Sprintf("%s has ended; %d of its %d pods took longer than they had, and were killed", whose, left, outcome.Asked)
	}
}
