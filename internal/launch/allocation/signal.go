package allocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
)

const (
	// LocalGrace is the time that pods and the command have to end after a signal
	// if Slurm's KillWait is unknown. It also applies to Ctrl-C, when somebody
	// waits at the terminal.
	LocalGrace = 5 * time.Second
	// takeDownTime is the part of KillWait reserved for removing the cluster.
	takeDownTime = time.Second
	// MaxGrace is Kubernetes' default for a pod.
	MaxGrace = 30 * time.Second
	// foreseeable is the longest grace that a message gives as a number.
	foreseeable = 24 * time.Hour
	// noLimit is the grace in a job without a time limit. It is the limit that Slurm's
	// backfill scheduler gives such a job (22.05). The main scheduler gives it none.
	noLimit = 365 * 24 * time.Hour
	// SameSignal is the time within which a further signal counts as the same
	// one. Slurm signals the step and also srun, which signals the step again.
	SameSignal = time.Second
)

// Interrupted is the error of a run that a signal ended.
type Interrupted struct{ Signal syscall.Signal }

func (i *Interrupted) Error() string {
	return fmt.Sprintf("ended by signal %d (%s)", int(i.Signal), i.Signal)
}

// Notice describes the signal for a message.
func (i *Interrupted) Notice() string { return fmt.Sprintf("signal %d (%s)", int(i.Signal), i.Signal) }

// EndedBy returns the error of a run that a signal ended. Its exit code is
// that of a shell.
func EndedBy(signal syscall.Signal) error {
	return &exitcode.Error{Code: exitcode.Signal + int(signal), Err: &Interrupted{signal}}
}

// WithGrace returns a context for the time of the workload. When ctx ends, ask
// asks the workload to end and waits for it, while its output is still passed on.
// Only then does the new context end, with the same cause. The caller must call
// the returned function.
func WithGrace(ctx context.Context, ask func(ctx context.Context, cause error)) (context.Context, func()) {
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

// InGrace calls do with the time that a signal leaves the workload to end. The context of
// do ends after that time, or at a second signal.
func (a *Allocation) InGrace(ctx context.Context, log *slog.Logger, reason *Interrupted, do func(context.Context, time.Duration)) {
	ctx, end := a.listen(ctx, reason.Signal)
	defer end()
	within(ctx, log, reason.Notice(), a.GraceNow(ctx, reason.Signal), do)
}

// InTime calls do with the time that --grace leaves the workload to end. The context of do
// ends after that time, or at a signal.
func (a *Allocation) InTime(ctx context.Context, log *slog.Logger, over *TimeUp, do func(context.Context, time.Duration)) {
	ctx, end := a.listen(ctx, 0)
	defer end()
	within(ctx, log, over.Error(), over.Grace, do)
}

func within(ctx context.Context, log *slog.Logger, why string, grace time.Duration, do func(context.Context, time.Duration)) {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	has := grace.Round(time.Second).String()
	if grace > foreseeable {
		has = "as long as its pods ask for"
	}
	log.Warn(fmt.Sprintf("%s: the workload has %s to end; a second signal ends it at once", why, has))
	do(ctx, grace)
}

// listen returns a context that ends at a second signal. first is 0 if no signal came
// before. The caller must call the returned function.
func (a *Allocation) listen(ctx context.Context, first syscall.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	again := make(chan os.Signal, 1)
	linux.NotifyUnlessIgnored(again, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	var heeding sync.WaitGroup
	heeding.Go(func() { a.heed(ctx, cancel, first, again) })
	return ctx, func() {
		signal.Stop(again)
		cancel()
		heeding.Wait()
	}
}

// heed calls end at a second signal of the user, or when the time after a further SIGTERM
// is over. It returns when ctx ends.
func (a *Allocation) heed(ctx context.Context, end func(), first syscall.Signal, again <-chan os.Signal) {
	began := time.Now()
	second := secondSignal{jobMayEnd: a != nil && first == syscall.SIGINT}
	var asking sync.WaitGroup
	defer asking.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-again:
			switch {
			case second.is(s, time.Since(began)):
				end()
			case s == syscall.SIGTERM:
				asking.Go(func() { a.shorten(ctx, end) })
			}
		}
	}
}

// shorten calls end when the time after a further SIGTERM is over. That signal may be a
// copy of the first one. Or Slurm sends it because the job, which was to continue after
// the first one, has been cancelled.
func (a *Allocation) shorten(ctx context.Context, end func()) {
	over := time.After(a.GraceNow(ctx, syscall.SIGTERM))
	select {
	case <-ctx.Done():
	case <-over:
		end()
	}
}

// secondSignal recognizes a second signal of the user among further ones.
type secondSignal struct {
	// jobMayEnd is set if SIGINT was the first signal. If berth is killed in a batch
	// script, its srun passes SIGINT on, and the script ends. A second later Slurm
	// ends the job with one SIGTERM.
	jobMayEnd bool
	// last is the time of that SIGTERM after the first signal. Slurm sends it to srun as
	// well, and so it comes again. It is 0 before.
	last time.Duration
}

// is reports whether a signal is a second one of the user. after is the time since the
// first one.
func (s *secondSignal) is(signal os.Signal, after time.Duration) bool {
	if s.jobMayEnd && signal == syscall.SIGTERM {
		s.jobMayEnd, s.last = false, after
		return false
	}
	return after-s.last > SameSignal
}

// EndingSignal returns the signal of a cause from Interrupted, and SIGTERM for
// any other cause.
func EndingSignal(cause error) syscall.Signal {
	if reason, ok := errors.AsType[*Interrupted](cause); ok {
		return reason.Signal
	}
	return syscall.SIGTERM
}
