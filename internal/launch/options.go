package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/crash"
)

// Options are the inputs of a run from the command line and its environment.
type Options struct {
	Spec   cluster.Spec
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	// Report is called when a step of the start is done.
	Report func(step string)
	// Log receives messages for the user.
	Log *slog.Logger
	// Own starts a separate cluster even if the run could use one that is up.
	// Keep leaves the run's objects in a cluster that is up.
	Own, Keep bool
	// Crash reports a panic of this process. It may be nil.
	Crash *crash.Reporter
	// Existing names a cluster that berth has not started.
	Existing Existing
	// Here allows a cluster on a host of a Slurm cluster outside an allocation.
	// HereForbidden names the line of the site's settings that forbids it, or is
	// empty.
	Here          bool
	HereForbidden string
	// Given lists all flags on the command line.
	Given []string
	// Shape lists the given flags that describe the cluster.
	Shape []string
}

// readWorkload reads the manifests and checks the archives that they and the
// command line name.
func readWorkload(options Options) ([]workload.Object, []archive.Archive, error) {
	if _, err := workload.NewSelection(options.Spec.Logs); err != nil {
		return nil, nil, exitcode.Wrap(exitcode.Usage, err)
	}
	objects, err := workload.Read(options.Spec.Manifests, options.Stdin)
	if err != nil {
		return nil, nil, inputError(err)
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, nil, exitcode.Wrap(exitcode.NoInput, fmt.Errorf("find the working directory: %w", err))
	}
	named, err := archive.NameFiles(objects, here)
	if err != nil {
		return nil, nil, exitcode.Wrap(exitcode.Manifest, err)
	}
	archives, err := archive.Find(slices.Concat(options.Spec.Images, named))
	return objects, archives, exitcode.Wrap(exitcode.NoInput, err)
}

// inputError sets the exit code: manifests cannot be read, or they are invalid.
func inputError(err error) error {
	if errors.As(err, new(*os.PathError)) {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	return exitcode.Wrap(exitcode.Manifest, err)
}

// jobOf returns the job of this process, or persistent.Local.
func jobOf(getenv func(string) string) string {
	if job := getenv("SLURM_JOB_ID"); job != "" {
		return job
	}
	return persistent.Local
}

// upVariable makes a persistent cluster report on standard error that it is up.
const upVariable = "BERTH_UP_REPORT"

// fromNode is the log of another node. It marks its messages, since they go to
// the same terminal.
type fromNode struct {
	slog.Handler
	name string
}

func (f fromNode) Handle(ctx context.Context, record slog.Record) error {
	record.Message = f.name + ": " + record.Message
	return f.Handler.Handle(ctx, record)
}
