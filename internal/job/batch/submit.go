package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// Refused reports that sbatch ended with an error, which sbatch has printed.
type Refused struct{ Code int }

func (r *Refused) Error() string { return fmt.Sprintf("sbatch ended with exit code %d", r.Code) }

// Submission holds the arguments and input of sbatch.
type Submission struct {
	Options []Option
	// Env is the environment of sbatch, and so of the job. Dir is the working directory;
	// empty means that of this process.
	Env    []string
	Dir    string
	Script []byte
	// Wait is set if the caller waits for the job and so needs its number.
	Wait bool
	// Stdout and Stderr receive the output of sbatch.
	Stdout, Stderr io.Writer
}

// Job identifies a submitted job.
type Job struct {
	// ID is the number of the job, of the whole array, or of the first
	// component.
	ID string
	// Cluster is Slurm's name of the cluster if the job was sent to another one.
	Cluster string
}

// Submit calls sbatch and returns the submitted job. The job is empty if sbatch printed
// none, as with --test-only, or with --quiet and without Wait. If sbatch fails, the error is
// a *Refused.
func Submit(ctx context.Context, sbatch string, s Submission) (Job, error) {
	command := exec.CommandContext(ctx, sbatch)
	var said bytes.Buffer
	command.Env, command.Dir = s.Env, s.Dir
	command.Stdin = bytes.NewReader(s.Script)
	command.Stdout, command.Stderr = io.MultiWriter(s.Stdout, &said), s.Stderr
	for _, option := range s.Options {
		switch {
		case option.Name == "wait": // Watch does that
		case option.Name == "quiet" && s.Wait: // the number is needed
			command.Args = append(command.Args, "--parsable")
			command.Stdout = &said
		default:
			command.Args = append(command.Args, option.Words...)
		}
	}
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	// A wrapper of the site may leave a process that keeps the output open.
	command.WaitDelay = 2 * time.Second
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return Job{}, context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return Job{}, &Refused{exit.ExitCode()}
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return Job{}, fmt.Errorf("run %s: %w", sbatch, err)
	}
	return submitted(said.String()), nil
}

var (
	announced = regexp.MustCompile(`(?m)^Submitted batch job (\d+)(?: on cluster (\S+))?$`)
	parsable  = regexp.MustCompile(`(?m)^(\d+)(?:;(\S+))?$`)
)

// submitted finds the job in the output of sbatch.
func submitted(output string) Job {
	for _, form := range []*regexp.Regexp{announced, parsable} {
		if found := form.FindStringSubmatch(strings.TrimRight(output, " ")); found != nil {
			return Job{ID: found[1], Cluster: found[2]}
		}
	}
	return Job{}
}
