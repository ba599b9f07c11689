package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/crash"
)

// stepNamePoll is the interval between lookups of a step that must end and does
// not exist yet.
const stepNamePoll = 500 * time.Millisecond

const (
	// unreadWait bounds the wait for a reader of the step's last output, once a signal or
	// an error has ended the step.
	unreadWait = time.Second
	// stalledWait bounds a write while the step ends. srun may wait until its output is
	// read before it ends.
	stalledWait = 5 * time.Second
)

var errUnread = errors.New("the last output of the step is lost: nobody reads standard output")

// ownStep is an srun that this process started, and its step.
type ownStep struct {
	options Options
	job     slurm.Job
	name    string
	srun    *exec.Cmd
	guard   *guard
	// ended is closed when srun has ended.
	ended chan struct{}
}

// ownStepName returns a step name that is unique in the job. end finds the step by
// this name.
func ownStepName() string { return fmt.Sprintf("berth-run-%d", os.Getpid()) }

// newStep returns a step in a job. end finds the step by its name.
func newStep(options Options, job slurm.Job, name string) *ownStep {
	return &ownStep{options: options, job: job, name: name, ended: make(chan struct{})}
}

// run starts srun, ends its step in order on a signal, and returns its exit code. The
// command begins with the name of srun.
//
// A signal to srun itself would not work. At SIGTERM, SIGHUP and SIGQUIT it has
// the step killed at once. It passes Ctrl-C on as a SIGINT, which under
// proctrack/linuxproc reaches every process of every pod (slurmstepd walks the
// tree of processes). So srun has its own session, where no terminal signals it,
// and this process has Slurm send SIGTERM to the step, as scancel does. Pods can
// handle that signal.
func (s *ownStep) run(ctx context.Context, srun string, command, env []string) (int, error) {
	s.guard = startGuard(guardShell)
	defer s.guard.end()
	s.srun = exec.Command(srun, command[1:]...)
	s.srun.Env = env
	s.srun.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	s.srun.Stdin, s.srun.Stdout, s.srun.Stderr = os.Stdin, os.Stdout, os.Stderr
	lost, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	passOn := func() error { return nil }
	if _, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS); err != nil {
		outlivePipes()
		// With an io.Writer, Wait would also wait for the reader of the output.
		from, to, err := os.Pipe()
		if err != nil {
			return 0, fmt.Errorf("make a pipe for the output of a step: %w", err)
		}
		defer to.Close()
		s.srun.Stdout = to
		passOn = passOutput(lost, output{os.Stdout, giveUp}, from, to)
	}
	if err := s.srun.Start(); err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start %s: %w", srun, err))
	}
	s.guard.watch(s.srun.Process.Pid)
	s.options.Crash.Note(crash.Note{Process: "berth", Lost: lostStep})
	closeInput()
	watched := make(chan error, 1)
	go func() { watched <- s.watch(lost) }()
	_ = s.srun.Wait() // its exit code reports the error
	s.guard.end()
	close(s.ended)
	if err := errors.Join(<-watched, passOn()); err != nil {
		s.options.Log.Warn(err.Error())
	}
	if ctx.Err() == nil && lost.Err() != nil {
		return 0, context.Cause(lost)
	}
	code := exitcode.OfStatus(s.srun.ProcessState.Sys().(syscall.WaitStatus))
	if ctx.Err() != nil && code == exitcode.Signal+int(syscall.SIGTERM) {
		// The step got SIGTERM, whichever signal the user sent.
		code = exitcode.Signal + int(allocation.EndingSignal(context.Cause(ctx)))
	}
	return code, nil
}

// passOutput starts to copy the output in the pipe from to the reader of to. The
// returned function closes end, the writing end of the pipe, and waits until all output
// is copied. When ctx has ended, it waits at most unreadWait. It returns errUnread if
// nobody read the output.
func passOutput(ctx context.Context, to output, from, end *os.File) func() error {
	o := &stepOutput{output: to, ending: ctx.Done()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer from.Close()
		_, _ = io.Copy(o, from) // o reports no error, and a pipe has none
	}()
	return func() error {
		end.Close()
		select {
		case <-done:
		case <-ctx.Done():
			select {
			case <-done:
			case <-time.After(unreadWait):
				return errUnread
			}
		}
		if o.unread {
			return errUnread
		}
		return nil
	}
}

// stepOutput passes on srun's standard output, also while the step ends. srun itself
// silently drops what it cannot write, and its step continues. A write error ends the
// step. After that, stepOutput accepts and drops the rest.
type stepOutput struct {
	output
	ending <-chan struct{}
	// failed is set after a write error. unread is set if nobody reads while the step
	// ends.
	failed, unread bool
}

func (o *stepOutput) Write(data []byte) (int, error) {
	if o.failed || o.unread {
		return len(data), nil
	}
	ours := slices.Clone(data) // the caller uses its buffer again
	written := make(chan error, 1)
	go func() {
		_, err := o.output.Write(ours)
		written <- err
	}()
	select {
	case err := <-written:
		o.failed = err != nil
		return len(data), nil
	case <-o.ending:
	}
	select {
	case err := <-written:
		o.failed = err != nil
	case <-time.After(stalledWait):
		o.unread = true
	}
	return len(data), nil
}

// closeInput replaces standard input with the null device. Once srun has it, this
// process must not keep a pipe open, or the writer would not notice that srun
// stopped reading.
func closeInput() {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return // the writer notices when this process ends
	}
	defer null.Close()
	_ = unix.Dup3(int(null.Fd()), 0, 0)
}

// watch ends the step when ctx ends, and again at each further signal. After Ctrl-C it
// also does so when LocalGrace is over, because somebody waits at the terminal.
// It returns when srun has ended, or the error of end.
func (s *ownStep) watch(ctx context.Context) error {
	select {
	case <-s.ended:
		return nil
	case <-ctx.Done():
	}
	began := time.Now()
	again := make(chan os.Signal, 1)
	linux.NotifyUnlessIgnored(again, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	var grace <-chan time.Time
	if allocation.EndingSignal(context.Cause(ctx)) == syscall.SIGINT {
		grace = time.After(allocation.LocalGrace)
	}
	if err := s.end(); err != nil {
		return err
	}
	for {
		select {
		case <-s.ended:
			return nil
		case <-grace:
		case <-again:
			if time.Since(began) < allocation.SameSignal {
				continue
			}
		}
		if err := s.end(); err != nil {
			return err
		}
	}
}

// end has Slurm send SIGTERM to the step. If that fails, end interrupts srun, which
// sends the step SIGINT, and returns an error.
func (s *ownStep) end() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-s.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	for {
		id, _, err := slurm.StepNamed(ctx, s.job.ID, s.name, slurm.AskLong)
		if err == nil && id != "" {
			err = slurm.TerminateStep(ctx, id, slurm.AskLong)
		}
		switch {
		case ctx.Err() != nil || err == nil && id != "":
			return nil
		case err != nil:
			// If this process is killed now, the guard would be the second to interrupt srun.
			s.guard.end()
			_ = s.srun.Process.Signal(syscall.SIGINT)
			return fmt.Errorf("end the step %s of job %s: %w; srun passes Ctrl-C on instead", s.name, s.job.ID, err)
		}
		// The step is about to start, or has just ended.
		select {
		case <-s.ended:
			return nil
		case <-time.After(stepNamePoll):
		}
	}
}
