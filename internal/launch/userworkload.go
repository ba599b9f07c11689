package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/command"
)

// userWorkload holds the objects, and perhaps the command, that the user runs on a
// cluster.
type userWorkload struct {
	Options
	// allocation is nil outside Slurm.
	allocation *allocation.Allocation
	client     *workload.Client
	kubeconfig []byte // of client
	objects    []workload.Object
	// progress is set if another node may follow the workload after this one.
	progress *workload.Progress
	// listed is called when all pods that exist have been seen. It may be nil.
	listed func()
	// asked is set when a signal has come and the workload was asked to end.
	asked   atomic.Bool
	mu      sync.Mutex
	command *command.Parent
}

// connect sets the kubeconfig and a client for it.
func (w *userWorkload) connect(kubeconfig []byte) (err error) {
	w.kubeconfig = kubeconfig
	w.client, err = workload.NewClient(kubeconfig)
	return err
}

// runCommand runs the user's command, with further variables for its environment.
func (w *userWorkload) runCommand(ctx context.Context, tools command.Tools, env map[string]string) (int, error) {
	return command.Command{
		Args: w.Spec.Command, Tools: tools, Getenv: w.Getenv, Environ: slurm.ScriptEnv(os.Environ()), Env: env,
		Stdin: w.Stdin, Stdout: w.Stdout, Stderr: w.Stderr,
	}.Run(ctx, func(parent *command.Parent) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.command = parent
	})
}

// getCommand returns the parent of the command, or nil.
func (w *userWorkload) getCommand() *command.Parent {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.command
}

// follow follows the objects until they have ended. ids describes the user and
// group ids of pods.
func (w *userWorkload) follow(ctx context.Context, ids string, giveUp context.CancelCauseFunc) (int, error) {
	result, err := w.followApart(ctx, w.kubeconfig, w.objects, workload.Streams{NoPull: w.Spec.NoPull, IDs: ids, Progress: w.progress, Listed: w.listed}, giveUp)
	return w.result(result, w.asked.Load(), err)
}

// result returns the exit code of a workload and logs the reason of a failure. asked is set
// if the workload was asked to end: then neither a failure nor lost output is reported.
func (o Options) result(result workload.Result, asked bool, err error) (int, error) {
	if errors.As(err, new(*workload.NeverStarts)) {
		return 0, exitcode.Wrap(exitcode.NeverStarts, err)
	}
	if err == nil && result.Code != 0 && !asked {
		o.Log.Warn(result.Reason)
	}
	if err == nil && result.Lost != "" && result.Code == 0 && !asked {
		return 0, exitcode.Wrap(exitcode.Output, fmt.Errorf("pass on the workload's output: lost: %s; the workload itself has succeeded", result.Lost))
	}
	return result.Code, err
}

// end asks the command and the pods to end if cause is a signal or the time limit. It calls
// pods for the pods. It returns when both have ended, or their time is over.
func (w *userWorkload) end(ctx context.Context, cause error, pods func(context.Context, time.Duration)) {
	both := func(ctx context.Context, grace time.Duration) {
		var ending sync.WaitGroup
		if parent := w.getCommand(); parent != nil {
			parent.End(grace)
			ending.Go(func() {
				select {
				case <-parent.Ended():
				case <-ctx.Done():
				}
			})
		}
		ending.Go(func() { pods(ctx, grace) })
		ending.Wait()
	}
	var reason *allocation.Interrupted
	var over *allocation.TimeUp
	switch {
	case errors.As(cause, &reason):
		w.asked.Store(true)
		w.allocation.InGrace(ctx, w.Log, reason, both)
	case errors.As(cause, &over):
		w.asked.Store(true)
		w.allocation.InTime(ctx, w.Log, over, both)
	}
}
