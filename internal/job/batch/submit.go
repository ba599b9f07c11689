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
)

// Refused reports that sbatch ended with an error, which sbatch has printed.
type Refused struct{ Code int }

func (r *Refused) Error() string { return fmt.Sprintf("sbatch ended with exit code %d", r.Code) }

// Submission holds the arguments and input of sbatch.
type Submission struct {
	Options []Option
	// Env is the environment of sbatch, and with that of the job.
	Env    []string
	Script []byte
	// Wait says that the job will be waited for.
	Wait bool
	// Stdout and Stderr receive what sbatch says.
	Stdout, Stderr io.Writer
}

// Job is one that has been submitted.
type Job struct {
	// ID is the number of the job, of the whole array, or of the first
	// component.
	ID string
	// Cluster is Slurm's name of another machine, where the job went to one.
	Cluster string
}

// Submit calls sbatch. The job is empty where sbatch printed none, as with
// --test-only, or --quiet where nobody waits.
func Submit(ctx context.Context, sbatch string, s Submission) (Job, error) {
	command := exec.CommandContext(ctx, sbatch)
	var said bytes.Buffer
	command.Env = s.Env
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
	err := command.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return Job{}, context.Cause(ctx)
	case errors.As(err, &exit) && exit.ExitCode() > 0:
		return Job{}, &Refused{exit.ExitCode()}
	case err != nil:
		return Job{}, fmt.Errorf("run %s: %w", sbatch, err)
	}
	return submitted(said.String()), nil
}

var (
	announced = regexp.MustCompile(`(?m)^Submitted batch job (\d+)(?: on cluster (\S+))?$`)
	parsable  = regexp.MustCompile(`(?m)^(\d+)(?:;(\S+))?$`)
)

// submitted finds the job in what sbatch says.
func submitted(output string) Job {
	for _, form := range []*regexp.Regexp{announced, parsable} {
		if found := form.FindStringSubmatch(strings.TrimRight(output, " ")); found != nil {
			return Job{ID: found[1], Cluster: found[2]}
		}
	}
	return Job{}
}
