package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch"
	"berth.dev/berth/internal/launch/crash"
)

// splitRun splits the arguments of berth run into the job and the command after
// '--'. dash is the number of arguments before '--', and negative if there is none.
func splitRun(args []string, dash int) (string, []string, error) {
	before, command := args, []string(nil)
	if dash >= 0 {
		before, command = args[:dash], args[dash:]
	}
	job, rest := takeJob(before)
	if len(rest) > 0 {
		return "", nil, &usageError{fmt.Errorf("unexpected argument %q: a job has a number, such as 12, 12_3 or 12.0, and a command comes after '--'", rest[0])}
	}
	return job, command, nil
}

// target returns the job whose cluster the run uses. It is empty if the run uses
// the cluster of this allocation or machine, or starts one. BERTH_JOB applies only
// outside of an allocation: jobs inherit it from the shell that submitted them.
func (f runFlags) target(getenv func(string) string) string {
	if f.job != "" || f.own || f.here || getenv("SLURM_JOB_ID") != "" {
		return f.job
	}
	if job := getenv(login.EnvJob); !(login.Target{Job: job}).IsLocal() {
		return job
	}
	return ""
}

// runInJob runs a workload on the cluster that the user has in a job.
func runInJob(command *cobra.Command, job string, spec cluster.Spec, use runFlags, getenv func(string) string, shown verbosity) error {
	ctx := command.Context()
	if use.own || use.here {
		return &usageError{errors.New("--own-cluster and --here start a cluster, and a run with JOB uses the one in that job: give one of them")}
	}
	return withProgress(command.ErrOrStderr(), shown, func(progress *progress, reporter *crash.Reporter) (int, error) {
		options := runOptions(spec, use, getenv, progress, reporter, "")
		if err := options.CheckUse(); err != nil {
			return 0, err
		}
		place, err := login.NewPlace(getenv)
		if err != nil {
			return 0, err
		}
		session, err := connect(ctx, place, job)
		if err != nil {
			if use.job == "" {
				err = fmt.Errorf("%w; %s names it, and 'unset %s' forgets it", err, login.EnvJob, login.EnvJob)
			}
			return 0, err
		}
		defer session.Close()
		if session.Target.IsLocal() {
			return launch.UseLocal(ctx, options)
		}
		program, err := remoteProgram(getenv)
		if err != nil {
			return 0, err
		}
		there := launch.JobCluster{
			Job: session.Target.Job, Head: session.Node, Program: program,
			Kubeconfig: session.Kubeconfig, Cache: session.Cache, Bin: session.Bin,
			Lost: session.Lost(), Why: session.Check,
		}
		words := append([]string{"run"}, changedFlags(command.Flags())...)
		return launch.UseJob(ctx, options, there, words)
	})
}

func connect(ctx context.Context, place *login.Place, job string) (*login.Session, error) {
	target, err := place.Resolve(ctx, job)
	if err != nil {
		return nil, err
	}
	return place.Connect(ctx, target)
}

// remoteProgram returns berth's own file on the nodes.
func remoteProgram(getenv func(string) string) (string, error) {
	if path := getenv(login.EnvRemotePath); path != "" {
		return path, nil
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find berth's own file: %w", err)
	}
	return self, nil
}

// listLimit bounds the search for clusters that a message lists.
const listLimit = 5 * time.Second

// explainOutside adds the alternatives, with the running clusters, to the error
// that refuses a cluster outside of an allocation. It returns other errors
// unchanged.
func explainOutside(ctx context.Context, err error, preferred *preferences) error {
	if !errors.Is(err, launch.ErrOutside) {
		return err
	}
	advice := "; submit a job ('berth submit ...', 'srun -N1 berth run ...'), get an allocation ('salloc'), or run on a cluster in a job ('berth run JOB ...')"
	if clusters := runningClusters(ctx, preferred); len(clusters) > 0 {
		advice += "; your clusters that run: " + strings.Join(clusters, ", ")
	}
	if preferred.forbidden["here"] == "" {
		advice += "; --here starts one on this host all the same"
	}
	return &exitcode.Error{Code: exitcode.Of(err), Err: fmt.Errorf("%w%s", err, advice)}
}

// runningClusters describes the user's clusters in jobs. It returns none if Slurm
// does not answer.
func runningClusters(ctx context.Context, preferred *preferences) (all []string) {
	place, err := login.NewPlace(preferred.Getenv)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	found, err := place.Clusters(ctx)
	if err != nil {
		return nil
	}
	for _, f := range found {
		if f.Session == nil {
			continue
		}
		f.Session.Close()
		if !(login.Target{Job: f.Job.ID}).IsLocal() {
			all = append(all, login.Describe(f.Job))
		}
	}
	return all
}
