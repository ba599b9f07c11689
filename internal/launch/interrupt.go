package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/kube/workload"
)

const (
	// localGrace is how long pods and the command may take to end on a
	// signal where no KillWait of Slurm's limits it, and on Ctrl-C: somebody
	// waits at the terminal.
	localGrace = 5 * time.Second
	// takeDownTime is kept of Slurm's KillWait for removing the cluster.
	takeDownTime = time.Second
	// maxGrace is Kubernetes' own default for a pod.
	maxGrace = 30 * time.Second
	// foreseeable is the longest time to end that a message gives in figures: a
	// job without a limit ends in a year.
	foreseeable = 24 * time.Hour
	// sameSignal is within which time a further signal counts as the same:
	// Slurm signals the step, and srun, which it signals too, does so again.
	sameSignal = time.Second
)

// interrupted says that a signal ended the run.
type interrupted struct{ signal syscall.Signal }

func (i *interrupted) Error() string {
	return fmt.Sprintf("ended by signal %d (%s)", int(i.signal), i.signal)
}

func (i *interrupted) notice() string { return fmt.Sprintf("signal %d (%s)", int(i.signal), i.signal) }

// Interrupted is the cause of a run that a signal ended: the exit code is that
// of a shell.
func Interrupted(signal syscall.Signal) error {
	return &exitcode.Error{Code: exitcode.Signal + int(signal), Err: &interrupted{signal}}
}

// ending is what a run needs to end in order.
type ending struct {
	allocation *allocation
	// asked: a signal came, and the workload was asked to end.
	asked atomic.Bool
	// lostLease: another node may lead the run.
	lostLease atomic.Bool
	mu        sync.Mutex
	command   *commandParent
}

func (e *ending) setCommand(k *commandParent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.command = k
}

func (e *ending) getCommand() *commandParent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.command
}

// withGrace returns a context for the time of the workload. When ctx ends, ask
// asks the workload to end and gives it the time for it, while its output is
// still passed on; only then the new context ends, for the same cause. The
// returned function must be called.
func withGrace(ctx context.Context, ask func(ctx context.Context, cause error)) (context.Context, func()) {
	work, end := context.WithCancelCause(context.WithoutCancel(ctx))
	asked := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(asked)
		cause := context.Cause(ctx)
		ask(work, cause)
		end(cause)
	})
	return work, func() {
		if !stop() {
			<-asked
		}
		end(nil)
	}
}

// askToEnd asks pods and the command to end and waits for them, for as long as
// the cause leaves time.
func (r *run) askToEnd(ctx context.Context, cause error) {
	r.finishState()
	var reason *interrupted
	var told *toldToEnd
	var over *timeUp
	switch {
	case errors.As(cause, &reason):
		r.asked.Store(true)
		inGrace(ctx, r.Log, reason.notice(), r.allocation.graceNow(ctx, reason.signal), r.endWorkload)
	case errors.As(cause, &over):
		r.asked.Store(true)
		inGrace(ctx, r.Log, over.Error(), over.grace, r.endWorkload)
	case errors.As(cause, &told):
		ctx, cancel := context.WithTimeout(ctx, told.order.Grace)
		defer cancel()
		told.answer(r.drain(ctx, told.order.Grace))
	}
}

// inGrace does what ends a workload within the time that a signal leaves, which
// a second one cuts short.
func inGrace(ctx context.Context, log *slog.Logger, why string, grace time.Duration, do func(context.Context, time.Duration)) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	hurry := make(chan os.Signal, 1)
	notifyUnlessIgnored(hurry, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(hurry)
	began := time.Now()
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hurry:
				if time.Since(began) > sameSignal {
					cancel()
				}
			}
		}
	}()
	has := grace.Round(time.Second).String()
	if grace > foreseeable {
		has = "as long as its pods ask for"
	}
	log.Warn(fmt.Sprintf("%s: the workload has %s to end; a second signal ends it at once", why, has))
	do(ctx, grace)
}

func (r *run) endWorkload(ctx context.Context, grace time.Duration) {
	var both sync.WaitGroup
	if kept := r.getCommand(); kept != nil {
		kept.end(grace)
		both.Go(func() {
			select {
			case <-kept.ended:
			case <-ctx.Done():
			}
		})
	}
	both.Go(func() { r.drain(ctx, grace) })
	both.Wait()
}

// drain asks all pods to end.
func (r *run) drain(ctx context.Context, grace time.Duration) workload.Drained {
	began := time.Now()
	drained, err := r.client.Drain(ctx, grace)
	switch left := drained.Asked - drained.Ended; {
	case err != nil && ctx.Err() == nil:
		r.Log.Warn("pods cannot be asked to end: " + err.Error())
	case left > 0 && r.allocation != nil && r.allocation.early == 0:
		r.Log.Warn(fmt.Sprintf("%d of %d pods had not ended after %s, and are killed; --grace 2m ends the workload two minutes before the job's time is over", left, drained.Asked, time.Since(began).Round(time.Second)))
	}
	return drained
}

// notifyUnlessIgnored leaves signals alone that whoever started this process
// has it ignore: nohup, or a shell for what it starts in the background.
func notifyUnlessIgnored(channel chan<- os.Signal, signals ...os.Signal) {
	for _, each := range signals {
		if !signal.Ignored(each) {
			signal.Notify(channel, each)
		}
	}
}

// outlivePipes keeps this process from being killed by a write to a pipe that
// nobody reads any more (berth run | head): the cluster is to be taken down in
// order. The signal is caught, not ignored, which the command would inherit.
func outlivePipes() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// output passes on what the workload writes. When nobody reads it any more,
// the run ends as a program does that has no other purpose.
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

// EndingSignal is the signal behind a cause of Interrupted, SIGTERM for any
// other.
func EndingSignal(cause error) syscall.Signal {
	var reason *interrupted
	if errors.As(cause, &reason) {
		return reason.signal
	}
	return syscall.SIGTERM
}
