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
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/command"
)

const (
	// localGrace is the time that pods and the command have to end after a signal
	// if Slurm's KillWait is unknown. It also applies to Ctrl-C, when somebody
	// waits at the terminal.
	localGrace = 5 * time.Second
	// takeDownTime is the part of KillWait reserved for removing the cluster.
	takeDownTime = time.Second
	// maxGrace is Kubernetes' default for a pod.
	maxGrace = 30 * time.Second
	// foreseeable is the longest grace that a message gives as a number. A job
	// without a limit ends in a year.
	foreseeable = 24 * time.Hour
	// sameSignal is the time within which a further signal counts as the same
	// one. Slurm signals the step and also srun, which signals the step again.
	sameSignal = time.Second
)

// interrupted is the error of a run that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (i *interrupted) Error() string {
	return fmt.Sprintf("ended by signal %d (%s)", int(i.signal), i.signal)
}

func (i *interrupted) notice() string { return fmt.Sprintf("signal %d (%s)", int(i.signal), i.signal) }

// Interrupted returns the error of a run that a signal ended. Its exit code is
// that of a shell.
func Interrupted(signal syscall.Signal) error {
	return &exitcode.Error{Code: exitcode.Signal + int(signal), Err: &interrupted{signal}}
}

// ending holds the state that a run needs to end in order.
type ending struct {
	allocation *allocation
	// asked is set when a signal has come and the workload was asked to end.
	asked atomic.Bool
	// lostLease is set when another node may lead the run.
	lostLease atomic.Bool
	mu        sync.Mutex
	command   *command.Parent
}

func (e *ending) setCommand(k *command.Parent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.command = k
}

func (e *ending) getCommand() *command.Parent {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.command
}

// withGrace returns a context for the time of the workload. When ctx ends, ask
// asks the workload to end and waits for it, while its output is still passed on.
// Only then does the new context end, with the same cause. The caller must call
// the returned function.
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

// askToEnd asks pods and the command to end, and waits as long as the cause
// allows.
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

// inGrace calls do with the time that a signal leaves for the workload's end. A
// second signal cuts it short.
func inGrace(ctx context.Context, log *slog.Logger, why string, grace time.Duration, do func(context.Context, time.Duration)) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	hurry := make(chan os.Signal, 1)
	linux.NotifyUnlessIgnored(hurry, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
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
		kept.End(grace)
		both.Go(func() {
			select {
			case <-kept.Ended():
			case <-ctx.Done():
			}
		})
	}
	both.Go(func() { r.drain(ctx, grace) })
	both.Wait()
}

// drain asks all pods to end and waits for them.
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

// outlivePipes keeps this process alive when it writes to a pipe that nobody
// reads any more (berth run | head), so that it takes the cluster down in order.
// It catches the signal, because the command would inherit an ignored one.
func outlivePipes() {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
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

// EndingSignal returns the signal of a cause from Interrupted, and SIGTERM for
// any other cause.
func EndingSignal(cause error) syscall.Signal {
	var reason *interrupted
	if errors.As(cause, &reason) {
		return reason.signal
	}
	return syscall.SIGTERM
}
