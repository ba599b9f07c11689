package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

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
	var output outputFile
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
				output.path = status.Output
				missing, err := output.copy(out)
				if err == nil && !output.found && (ended || !follow) {
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

// outputFile is a file that a job writes.
type outputFile struct {
	path string
	// found reports whether the file was there once.
	found bool
	// info describes the file that was read last, and offset is the number of its bytes
	// that were read.
	info   os.FileInfo
	offset int64
}

// copy copies the bytes that were not read yet. A file that was replaced or has become shorter, as
// the output of a requeued job does, is read from its start. missing is the error for a file that
// is not there. copy opens the file at each call, because a network file system fetches the writes
// of other hosts when a file is opened.
func (o *outputFile) copy(out io.Writer) (missing, err error) {
	file, err := openRegular(o.path)
	if errors.Is(err, os.ErrNotExist) {
		o.info = nil
		return err, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if o.info == nil || !os.SameFile(o.info, info) || info.Size() < o.offset {
		o.offset = 0
	}
	o.found, o.info = true, info
	if _, err := file.Seek(o.offset, io.SeekStart); err != nil {
		return nil, err
	}
	n, err := io.Copy(out, file)
	o.offset += n
	return nil, err
}
