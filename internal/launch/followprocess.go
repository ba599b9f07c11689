package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/kube/containerlog"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/node/sandbox"
)

// maxFollowers bounds how often a run starts the process that follows its workload.
const maxFollowers = 4

const (
	// quietOutput is the time without output after which none is assumed to be in
	// transit.
	quietOutput = 100 * time.Millisecond
	// lastOutput bounds the wait for output in transit when a signal or the time limit
	// ends the run.
	lastOutput = time.Second
	// keptUp ends the wait for containers that go on writing. If no node has reported
	// unsent output for so long, the output that was in transit has arrived. A report
	// can take that long to get past a slow reader.
	keptUp = 5 * time.Second
	// stoppedOutput is the time without output after which the wait ends: nobody reads
	// the output, or its node does not answer.
	stoppedOutput = 5 * time.Second
	// outputBesideStuck bounds the wait when a pod that can never start ends the run.
	outputBesideStuck = time.Minute
)

// followApart follows a workload in another process, so that a defect there does
// not end the cluster. A mark follows each piece of output. If the process dies, a new
// one continues after the last mark.
func (o Options) followApart(ctx context.Context, kubeconfig []byte, objects []workload.Object, streams workload.Streams, giveUp context.CancelCauseFunc) (workload.Result, error) {
	config := followConfig{Kubeconfig: kubeconfig, NoPull: streams.NoPull, IDs: streams.IDs, Existing: streams.Existing, Partitions: o.Spec.SlurmJobs, Logs: o.Spec.Logs}
	for _, object := range objects {
		config.Objects = append(config.Objects, followObject{object.Object, object.Source})
	}
	if streams.Progress == nil {
		streams.Progress = &workload.Progress{}
	}
	streams.Out, streams.Err = &output{o.Stdout, giveUp}, &output{o.Stderr, giveUp}
	streams.Warn = func(text string) { o.Log.Warn(text) }
	streams.Inform = func(text string) { o.Log.Info(text) }
	streams.Lose = func(text string, _ containerlog.Loss) { o.Log.Error(text) }
	f := newFollowProcess(streams)
	for n := 1; ; n++ {
		config.Followed = streams.Progress.Followed()
		f.hold(-f.held) // the next process sends it again
		err := f.run(ctx, config)
		switch {
		case ctx.Err() != nil:
			f.countUnread()
			return workload.Result{}, context.Cause(ctx)
		case f.last.Result != nil:
			return f.result()
		case n == maxFollowers:
			f.countUnread()
			return workload.Result{}, exitcode.Wrap(exitcode.Internal, fmt.Errorf("follow the workload: %w, %d times; what its containers write from now on is lost", err, n))
		}
		o.Log.Warn(fmt.Sprintf("the process that follows the workload %v; starting it again, nothing is lost or repeated", err))
	}
}

// followProcess is the supervisor's view of the process that follows the workload.
type followProcess struct {
	streams workload.Streams
	last    followEvent

	mu sync.Mutex
	// held counts the bytes that wait for their mark or for the reader of the
	// output. changed is the time of the last change.
	held    int64
	changed time.Time
	// waiting maps a container to the size of its output that was not received, as its
	// last mark reported it.
	waiting map[string]waitingOutput
	// refused is set if the output cannot be written any more.
	refused bool
	// stuck is closed when a pod can never start.
	stuck chan struct{}
}

// waitingOutput counts the bytes of a container that its node has not sent, and the
// bytes of an unfinished line.
type waitingOutput struct{ onNode, ofLine int64 }

func newFollowProcess(streams workload.Streams) *followProcess {
	return &followProcess{streams: streams, waiting: map[string]waitingOutput{}, stuck: make(chan struct{})}
}

// result returns the result that the process reported, with the lost output, and the
// error that it reported.
func (f *followProcess) result() (workload.Result, error) {
	result := *f.last.Result
	losses := f.streams.Progress.Followed().Losses
	result.Lost = losses.String()
	switch {
	case f.last.Stuck != nil:
		f.countUnread() // of containers that run
		return result, f.last.Stuck
	case f.last.Error != "":
		return result, errors.New(f.last.Error)
	}
	return result, nil
}

// unread counts the output that is known to exist and was not passed on.
func (f *followProcess) unread() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := f.held
	for _, w := range f.waiting {
		sum += w.onNode + w.ofLine
	}
	return sum
}

// countUnread reports as lost the output that is known to exist and was not passed on.
func (f *followProcess) countUnread() {
	unread := f.unread()
	f.mu.Lock()
	refused := f.refused
	f.mu.Unlock()
	if unread > 0 && !refused {
		f.streams.Lose(fmt.Sprintf("output of containers is lost (at least %d bytes): the run was ended before it was passed on", unread), containerlog.Loss{Bytes: unread})
	}
}

// awaitOutput waits for the output that is in transit and reports whether it has
// arrived. Containers may go on writing. It returns false when limit is closed, and when
// output has stopped coming.
func (f *followProcess) awaitOutput(limit <-chan struct{}) bool {
	began := time.Now()
	for behind := began; ; {
		f.mu.Lock()
		held, still := f.held, time.Since(later(began, f.changed))
		var onNodes int64
		for _, w := range f.waiting {
			onNodes += w.onNode
		}
		f.mu.Unlock()
		if onNodes > 0 {
			behind = time.Now()
		}
		switch {
		case onNodes+held == 0 && still > quietOutput, time.Since(behind) > keptUp:
			return true
		case still > stoppedOutput:
			return false
		}
		select {
		case <-limit:
			return false
		case <-time.After(quietOutput / 10):
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// run runs one process until it ends. If it ends without a result, the error says
// how.
func (f *followProcess) run(ctx context.Context, config followConfig) error {
	var ours, theirs []*os.File
	defer func() { linux.CloseAll(ours) }()
	for range 3 {
		reader, writer, err := os.Pipe()
		if err != nil {
			linux.CloseAll(theirs)
			return fmt.Errorf("make pipe: %w", err)
		}
		ours, theirs = append(ours, reader), append(theirs, writer)
	}
	// This side holds the writing end of the third pipe, and never writes to it.
	ours[2], theirs[2] = theirs[2], ours[2]
	var fds linux.FDTable
	fds.Add(fdEvents, theirs[0])
	fds.Add(fdOutput, theirs[1])
	fds.Add(fdLife, theirs[2])
	var said headBuffer
	process := exec.Command("/proc/self/exe", FollowArg)
	process.Args[0] = "berth"
	process.Stderr = &said
	err := fds.Start(process, config)
	linux.CloseAll(theirs)
	if err != nil {
		return fmt.Errorf("could not be started: %w", err)
	}
	gone := make(chan struct{})
	defer close(gone)
	go sandbox.KeepRunning(process.Process.Pid, gone)
	var group errgroup.Group
	group.Go(func() error { return f.readEvents(ours[0]) })
	group.Go(func() error {
		err := f.readOutput(ours[1])
		if err != nil { // nobody reads the output any more
			_ = process.Process.Kill()
		}
		return err
	})
	read := make(chan struct{})
	var problem error
	go func() {
		problem = group.Wait()
		close(read)
	}()
	// end waits for the last output, at most until bound or the end of ctx, and kills
	// the process. It returns the cause of ctx.
	end := func(ctx context.Context, bound time.Duration) error {
		limit, stop := context.WithTimeout(ctx, bound)
		defer stop()
		if !f.awaitOutput(limit.Done()) {
			stop()
		}
		_ = process.Process.Kill()
		select {
		case <-read:
		case <-limit.Done():
		}
		_ = process.Wait()
		return context.Cause(ctx)
	}
	select {
	case <-read:
	case <-f.stuck:
		return end(ctx, outputBesideStuck)
	case <-ctx.Done():
		return end(context.WithoutCancel(ctx), lastOutput)
	}
	err = process.Wait()
	if f.last.Result != nil {
		return nil
	}
	if problem != nil {
		return problem
	}
	if err == nil {
		err = errors.New("without a result")
	}
	return fmt.Errorf("ended: %w%s", err, said.panicked())
}

func (f *followProcess) readEvents(from io.Reader) error {
	for decoder := json.NewDecoder(from); ; {
		var event followEvent
		if err := decoder.Decode(&event); err != nil {
			return nil // the process has ended, perhaps in the middle of an event
		}
		switch {
		case event.Result != nil && f.last.Result == nil:
			if f.last = event; event.Stuck != nil {
				close(f.stuck)
			}
		case event.Warn != "":
			f.streams.Warn(event.Warn)
		case event.Inform != "":
			f.streams.Inform(event.Inform)
		case event.Listed:
			if f.streams.Listed != nil {
				f.streams.Listed()
			}
		case event.Step != nil:
			f.streams.Progress.Apply(*event.Step)
		}
	}
}

// readOutput passes output on when the mark after it has arrived.
func (f *followProcess) readOutput(from io.Reader) error {
	reader := bufio.NewReaderSize(from, 64<<10)
	var batch []containerlog.Frame
	for {
		frame, err := containerlog.ReadFrame(reader)
		if err != nil {
			return nil // the process has ended, perhaps in the middle of a batch
		}
		if frame.Kind != containerlog.KindPosition {
			f.hold(int64(len(frame.Data)))
			batch = append(batch, frame)
			continue
		}
		var step workload.Step
		if err := json.Unmarshal(frame.Data, &step); err != nil {
			return fmt.Errorf("decode a step: %w", err)
		}
		f.mu.Lock()
		f.waiting[step.Key] = waitingOutput{step.Mark.Behind, int64(len(step.Mark.Out) + len(step.Mark.Err))}
		f.mu.Unlock()
		for _, b := range batch {
			to := f.streams.Out
			if b.Kind == containerlog.KindStderr {
				to = f.streams.Err
			}
			if _, err := to.Write(b.Data); err != nil {
				f.mu.Lock()
				f.refused = true
				f.mu.Unlock()
				return err
			}
			f.hold(-int64(len(b.Data)))
		}
		batch = batch[:0]
		f.streams.Progress.Apply(step)
		for _, lost := range step.Lost {
			f.streams.Lose(lost.Message, lost.Loss)
		}
	}
}

// hold adds to the number of bytes that were received and not passed on.
func (f *followProcess) hold(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held += bytes
	f.changed = time.Now()
}

// headBuffer keeps the beginning of a process's standard error.
type headBuffer struct{ bytes.Buffer }

func (b *headBuffer) Write(data []byte) (int, error) {
	if room := 16<<10 - b.Len(); room > 0 {
		b.Buffer.Write(data[:min(room, len(data))])
	}
	return len(data), nil
}

// panicked returns the reason of a panic, or the first line of the output.
func (b *headBuffer) panicked() string {
	first := ""
	for line := range strings.Lines(b.String()) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return ": " + line
		}
		if first == "" && line != "" {
			first = ": " + line
		}
	}
	return first
}

// output passes on the output of the workload. When nobody reads it any more, the
// run ends, as other programs do.
type output struct {
	to     io.Writer
	giveUp context.CancelCauseFunc
}

func (o *output) Write(data []byte) (int, error) {
	n, err := o.to.Write(data)
	switch {
	case errors.Is(err, syscall.EPIPE):
		o.giveUp(&exitcode.Error{Code: exitcode.Signal + int(syscall.SIGPIPE), Err: errors.New("nobody reads the output any more")})
	case err != nil:
		o.giveUp(&exitcode.Error{Code: exitcode.Output, Err: fmt.Errorf("pass on the workload's output: %w", err)})
	}
	return n, err
}
