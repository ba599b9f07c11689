package process

import (
	"context"
	"fmt"
	"io"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/slurmjobs/joblog"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

const (
	// logInterval is the time between two reads of the output.
	logInterval = time.Second / 2
	// readsPerState is the number of reads of the output for each read of the object, which
	// contains the script.
	readsPerState = 4
)

// Logs writes the standard output of an object's job to out. The output is a file on this host.
// If follow is true, Logs writes what the job adds to it, and returns when the job has ended.
func Logs(ctx context.Context, config *rest.Config, namespace, name string, follow bool, out io.Writer) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	var output joblog.File
	for {
		object, err := find(ctx, client, namespace, name)
		if err != nil {
			return err
		}
		status, err := kinds.StatusOf(object)
		if err != nil {
			return err
		}
		ended := kinds.Ended(status.State) || status.State == kinds.Rejected
		if status.Output == "" && (ended || !follow) {
			return fmt.Errorf("%s %s has no output: its state is %q; %s", object.GetKind(), object.GetName(), status.State, status.Message)
		}
		for range readsPerState {
			if status.Output != "" {
				output.Path = status.Output
				missing, err := output.Copy(ctx, out)
				if err == nil && !output.Found && (ended || !follow) {
					err = missing
				}
				if err != nil {
					return fmt.Errorf("read the output of job %s: %w", status.JobID, err)
				}
			}
			if ended || !follow {
				return nil
			}
			select {
			case <-time.After(logInterval):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}
