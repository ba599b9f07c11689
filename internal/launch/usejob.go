package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

// JobCluster is a cluster in a job, for programs outside the job.
type JobCluster struct {
	// Job is Slurm's job number.
	Job string
	// Head is the node with the API server. Program is the path of berth there.
	Head, Program string
	// Kubeconfig is the kubeconfig on this host. Cache and Bin are as in
	// persistent.Facts.
	Kubeconfig, Cache, Bin string
	// Lost is closed when the cluster is unreachable. Why returns the reason.
	Lost <-chan struct{}
	Why  func() error
}

// UseJob runs a workload on a cluster in a job. A command runs on the head, where
// the job's processors and memory are. This process becomes a step of the job,
// which runs berth with args and the command. Manifests are applied and followed
// from this host.
func UseJob(ctx context.Context, options Options, c JobCluster, args []string) (int, error) {
	there := jobCluster{c, options}
	if len(options.Spec.Command) == 0 {
		return newUser(options, there).run(ctx)
	}
	command, err := there.step(ctx, append(append(args, "--"), options.Spec.Command...)...)
	if err != nil {
		return 0, err
	}
	options.Log.Debug("starting a step on " + c.Head + ", the head of the cluster of job " + c.Job)
	if err := options.Crash.Close(); err != nil {
		return 0, err
	}
	return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start %s: %w", command.Path, syscall.Exec(command.Path, command.Args, command.Env)))
}

// UseLocal runs a workload on the cluster that 'berth up' started on this machine
// outside Slurm.
func UseLocal(ctx context.Context, options Options) (int, error) {
	cluster, ok := persistent.Find(rundir.MemoryPlaces(options.Getenv), persistent.Local)
	if !ok {
		return 0, exitcode.Wrap(exitcode.Unavailable, persistent.ErrEnded)
	}
	return newUser(options, onHead{cluster}).run(ctx)
}

// jobCluster is a cluster that a run uses through a tunnel.
type jobCluster struct {
	JobCluster
	options Options
}

func (c jobCluster) AwaitReady(context.Context) (persistent.Facts, error) {
	return persistent.Facts{Job: c.Job, Cache: c.Cache, Bin: c.Bin}, nil
}

func (c jobCluster) Kubeconfig() string     { return c.JobCluster.Kubeconfig }
func (c jobCluster) Ended() <-chan struct{} { return c.Lost }
func (c jobCluster) Reason() error          { return c.Why() }

// BringImages runs a step on the head that brings the images, because a cluster
// accepts images only there. The step sees the files that the head sees.
func (c jobCluster) BringImages(ctx context.Context, images []string) error {
	args := []string{"run", "--quiet"}
	for _, image := range images {
		args = append(args, "--image="+image)
	}
	command, err := c.step(ctx, append(args, "--", "true")...)
	if err != nil {
		return err
	}
	var said bytes.Buffer
	command.Stderr = &said
	err = command.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return &persistent.Refusal{Code: exit.ExitCode(), Text: "bring images to the cluster of job " + c.Job + ": " + own(said.String())}
	case err != nil:
		return fmt.Errorf("bring images to the cluster of job %s: %w", c.Job, err)
	}
	return nil
}

// own returns the messages of berth in a step as one line, without srun's
// messages.
func own(said string) string {
	var lines []string
	for line := range strings.Lines(said) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), "berth: "); ok {
			lines = append(lines, text)
		}
	}
	if len(lines) == 0 {
		return strings.TrimSpace(said)
	}
	return strings.Join(lines, "; ")
}

// step returns a command that runs berth on the head, as a user of its cluster.
func (c jobCluster) step(ctx context.Context, args ...string) (*exec.Cmd, error) {
	heterogeneous, err := slurm.HasComponents(ctx, c.Job, slurm.AskLong)
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("ask Slurm for job %s: %w", c.Job, err))
	}
	words := slurm.UseCommand(c.Job, c.Head, heterogeneous, append([]string{c.Program}, args...)...)
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	if command.Err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start a step in job %s: %w; add the directory of Slurm commands to PATH", c.Job, command.Err))
	}
	command.Env = append(slurm.IntoEnv(os.Environ()), c.options.hop())
	return command, nil
}
