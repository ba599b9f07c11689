package allocation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/job/slurm"
)

// Allocation describes the Slurm job of this run and its end. It is nil for a run
// outside Slurm.
type Allocation struct {
	Job slurm.Job
	Ask slurm.Ask
	log *slog.Logger
	now func() time.Time

	mu sync.Mutex
	// end and killWait are zero if they are unknown.
	end      time.Time
	killWait time.Duration
	// Early is the time that the run leaves between its own end and the end of
	// the job. If it is 0, Slurm ends the run.
	Early time.Duration
	// EarlyShare limits Early to a share of the time that the job has left at the start: one half if
	// it is 2. With 0, there is no limit.
	EarlyShare int
	// preempted is set if the job makes room for another job and should start
	// again. requeued is set if Slurm has requeued it already.
	preempted, requeued bool
	// asked is set if GraceNow has asked Slurm whether the job starts again, and answered if it has
	// the answer.
	asked, answered bool
}

// New returns the allocation of this process's job.
func New(job slurm.Job, log *slog.Logger) *Allocation {
	return &Allocation{Job: job, Ask: slurm.AskSlurm, log: log, now: time.Now, end: job.End}
}

// Check refuses a job whose time is nearly over, if its end is known.
func (a *Allocation) Check() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	left, enough := slurm.Remaining(a.end, a.now())
	if enough {
		return nil
	}
	return exitcode.Wrap(exitcode.Config, fmt.Errorf("job %s ends in %s, which is too short for a cluster: ask Slurm for more with --time", a.Job.ID, left))
}

// askAgain is the time after which a question that Slurm did not answer is
// repeated. It is short enough for --grace and does not burden a busy controller.
const askAgain = 30 * time.Second

// Inquire asks Slurm's commands for what the environment does not contain. They
// can take seconds, so nothing waits for them. Inquire calls giveUp if the answer
// shows that the run cannot succeed, or when --grace ends the run.
func (a *Allocation) Inquire(ctx context.Context, giveUp context.CancelCauseFunc) {
	for !a.learn(ctx) {
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return
		}
	}
	if err := a.Check(); err != nil {
		giveUp(err)
	}
	a.endEarly(ctx, giveUp)
}

// learn asks for the end of the job and for Slurm's KillWait. It reports whether
// to stop asking, because both are known or Slurm's commands are missing.
func (a *Allocation) learn(ctx context.Context) bool {
	end, endErr := slurm.EndTime(ctx, a.Job, a.Ask)
	if endErr != nil {
		a.log.Debug("the end of the job is not known: " + endErr.Error())
	}
	config, configErr := slurm.ReadConfig(ctx, a.Ask)
	if configErr != nil {
		a.log.Debug("Slurm's KillWait is not known: " + configErr.Error())
	}
	a.mu.Lock()
	a.end, a.killWait = end, killWait(config)
	a.mu.Unlock()
	return endErr == nil && configErr == nil || errors.Is(configErr, slurm.ErrNoSlurm)
}

// TimeUp is the cause of a run's end that leaves the workload time to end
// (--grace).
type TimeUp struct {
	Grace time.Duration
	// OfStep reports whether the step ends before the job (srun --time).
	OfStep bool
}

func (t *TimeUp) Error() string {
	if t.OfStep {
		return fmt.Sprintf("the step's time is over in %s, which the workload has to end (--grace)", t.Grace)
	}
	return fmt.Sprintf("the job's time is over in %s, which the workload has to end (--grace)", t.Grace)
}

// endEarly calls giveUp with a *TimeUp when the remaining time of the job or its step is
// only Early and the time to take the cluster down. It asks Slurm for the end again
// before that, because the limit may change. Without an answer, the last one counts.
func (a *Allocation) endEarly(ctx context.Context, giveUp context.CancelCauseFunc) {
	if a.Early == 0 {
		return
	}
	last, early := slurm.Moment{End: a.KnownEnd()}, a.Early
	for first := true; ; {
		moment, err := slurm.Now(ctx, a.Job, a.Ask)
		if err == nil {
			last = moment
			a.noteEnd(moment)
		}
		if first && a.EarlyShare > 0 && !last.End.IsZero() {
			early, first = min(early, last.End.Sub(a.now())/time.Duration(a.EarlyShare)), false
		}
		wait := last.End.Sub(a.now()) - early - takeDownTime
		switch limited := !last.End.IsZero(); {
		case limited && wait <= 0:
			giveUp(exitcode.Wrap(exitcode.TimeLimit, &TimeUp{early, last.OfStep}))
			return
		case !limited && err == nil:
			return
		case !limited:
			wait = askAgain
		case err != nil:
			wait = min(wait, askAgain)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// noteEnd records the end of the job, which scontrol may have changed. It does nothing
// if the step ends before.
func (a *Allocation) noteEnd(moment slurm.Moment) {
	if moment.OfStep {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.end = moment.End
}

// GraceNow returns the time for a workload to end after a signal: that of grace, or
// more if the job continues after the signal. Slurm sends such a signal before the
// end of the job (--signal, or preemption with a grace time). GraceNow asks Slurm for
// at most half of the time, and subtracts how long that took.
func (a *Allocation) GraceNow(ctx context.Context, signal syscall.Signal) time.Duration {
	grace := a.grace(signal)
	if a == nil || signal != syscall.SIGTERM {
		return grace
	}
	over := a.now().Add(grace)
	ctx, cancel := context.WithTimeout(ctx, grace/2)
	defer cancel()
	moment, err := slurm.Now(ctx, a.Job, a.Ask)
	if err != nil {
		a.log.Debug("the state of the job is not fully known: " + err.Error())
	}
	a.mu.Lock()
	if moment.Running && moment.Returns { // remember it: a later answer may omit it
		a.preempted = true
	}
	a.requeued = a.requeued || moment.Restarts > a.Job.Restarts
	a.asked, a.answered = true, a.answered || !moment.Undecided
	// The limit may have been raised since the run asked for the end.
	if !a.end.IsZero() && moment.Limit.After(a.end) && !moment.OfStep {
		a.end = moment.Limit
	}
	a.mu.Unlock()
	left := max(0, over.Sub(a.now()))
	switch {
	case !moment.Running || err != nil && moment.End.IsZero():
		return left
	case moment.End.IsZero():
		return noLimit
	}
	return max(left, moment.End.Sub(a.now())-takeDownTime)
}

// Requeue requeues a job that was preempted with a grace time, as its partition
// demands. Slurm itself would not (22.05): it considers a job that ends within
// the grace time completed, and any other job timed out.
func (a *Allocation) Requeue() {
	if a == nil || !a.isPreempted() {
		return
	}
	a.log.Warn("job " + a.Job.ID + " was preempted, and is requeued")
	if err := slurm.Requeue(context.Background(), a.Job, a.Ask); err != nil {
		a.log.Warn("requeue job " + a.Job.ID + ": " + err.Error())
	}
}

// MayStartAgain reports whether Slurm starts the job again, as far as GraceNow has learned. It
// also reports true if GraceNow got no answer.
func (a *Allocation) MayStartAgain() bool {
	if a == nil {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.preempted || a.requeued || a.asked && !a.answered
}

func (a *Allocation) isPreempted() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.preempted
}

// Memory lowers the limit to the memory that the job requested. Slurm usually
// answers within milliseconds. Without an answer the limit stays as it is.
func (a *Allocation) Memory(ctx context.Context, limit probe.Memory) probe.Memory {
	if a == nil {
		return limit
	}
	limit, err := slurm.LimitMemory(ctx, a.Job, limit, a.Ask)
	if err != nil {
		a.log.Debug("the memory of the job is not known: " + err.Error())
	}
	return limit
}

// killWait parses Slurm's setting, which is "30 sec" in the controller's answer.
func killWait(config slurm.Config) time.Duration {
	number, _, _ := strings.Cut(config.Get("KillWait"), " ")
	seconds, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// grace returns the time for a workload to end after a signal. Slurm kills
// everything KillWait after its SIGTERM.
func (a *Allocation) grace(signal syscall.Signal) time.Duration {
	if a == nil {
		return LocalGrace
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.killWait == 0 {
		return LocalGrace
	}
	grace := min(MaxGrace, max(0, a.killWait-takeDownTime))
	if signal == syscall.SIGINT {
		grace = min(grace, LocalGrace)
	}
	return grace
}

// Reason returns the time limit as the cause if it caused the signal, and cause
// otherwise.
func (a *Allocation) Reason(cause error) error {
	var reason *Interrupted
	if a == nil || !errors.As(cause, &reason) || reason.Signal != syscall.SIGTERM {
		return cause
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end.IsZero() || a.now().Before(a.end.Add(-time.Second)) {
		return cause
	}
	return &exitcode.Error{Code: exitcode.TimeLimit, Err: fmt.Errorf("the time limit of job %s was over before the workload ended: ask Slurm for more with --time", a.Job.ID)}
}

// Warnings returns the warning of slurm.StepSmallerThanAllocation. It is empty if
// there is none, and outside Slurm.
func (a *Allocation) Warnings(cpus int, memory uint64) string {
	if a == nil {
		return ""
	}
	return slurm.StepSmallerThanAllocation(a.Job, cpus, memory)
}

// Left returns the remaining time of the job, and reports whether it is known.
func (a *Allocation) Left() (time.Duration, bool) {
	if a == nil {
		return 0, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return max(0, a.end.Sub(a.now())), !a.end.IsZero()
}

// KnownEnd returns the end of the job's time, or zero if it is unknown.
func (a *Allocation) KnownEnd() time.Time {
	if a == nil {
		return time.Time{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end
}
