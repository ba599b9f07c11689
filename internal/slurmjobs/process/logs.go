package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
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
	// end holds the last bytes that were read, at most maxEnd.
	end []byte
}

// maxEnd is the number of bytes that tell a file from another one in its place.
const maxEnd = 256

// copy copies the bytes that were not read yet. A file that was replaced, has become shorter, or has
// other bytes before the offset, as the output of a requeued job has, is read from its start. missing is the error for a file that
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
	if o.info == nil || !os.SameFile(o.info, info) || !o.continues(file) {
		o.offset, o.end = 0, nil
	}
	o.found, o.info = true, info
	if _, err := file.Seek(o.offset, io.SeekStart); err != nil {
		return nil, err
	}
	n, err := io.Copy(io.MultiWriter(out, o), file)
	o.offset += n
	return nil, err
}

// continues reports whether a file still has the last bytes that were read.
func (o *outputFile) continues(file io.ReaderAt) bool {
	now := make([]byte, len(o.end))
	n, _ := file.ReadAt(now, o.offset-int64(len(o.end)))
	return bytes.Equal(now[:n], o.end)
}

// Write keeps the end of what was read.
func (o *outputFile) Write(read []byte) (int, error) {
	o.end = append(o.end, read[max(0, len(read)-maxEnd):]...)
	o.end = slices.Clone(o.end[max(0, len(o.end)-maxEnd):])
	return len(read), nil
}
