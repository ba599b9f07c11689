package launch

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

	"berth.dev/berth/internal/probe"
	"berth.dev/berth/internal/slurm"
)

// minTime is what a job must have left for a cluster to be of any use.
const minTime = 5 * time.Second

// allocation is what Slurm gave this run: the job, and how long it lasts. A nil
// allocation is that of a run outside of Slurm.
type allocation struct {
	job slurm.Job
	log *slog.Logger
	ask slurm.Ask
	now func() time.Time

	mu sync.Mutex
	// end and killWait are zero where they are not known.
	end      time.Time
	killWait time.Duration
}

// check refuses a job whose time is nearly over, where the environment tells.
func (a *allocation) check() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end.IsZero() {
		return nil
	}
	left := a.end.Sub(a.now()).Round(time.Second)
	if left >= minTime {
		return nil
	}
	return fail(ExitConfig, fmt.Errorf("job %s ends in %s, which is too short for a cluster: ask Slurm for more with --time", a.job.ID, max(0, left)))
}

// inquire asks Slurm's commands for what the environment does not say. They
// can take seconds, so nothing waits for them; giveUp is called when the
// answer shows that the run is of no use.
func (a *allocation) inquire(ctx context.Context, giveUp context.CancelCauseFunc) {
	end, err := slurm.EndTime(ctx, a.job, a.ask)
	if err != nil {
		a.log.Debug("the end of the job is not known: " + err.Error())
	}
	config, err := slurm.ReadConfig(ctx, a.ask)
	if err != nil {
		a.log.Debug("Slurm's KillWait is not known: " + err.Error())
	}
	a.mu.Lock()
	a.end, a.killWait = end, killWait(config)
	a.mu.Unlock()
	if err := a.check(); err != nil {
		giveUp(err)
	}
}

// memory replaces a limit that nobody enforces and the environment does not
// tell by what the job has asked for. Slurm's answer mostly takes milliseconds;
// without one the limit stays as it is.
func (a *allocation) memory(ctx context.Context, limit probe.Memory) probe.Memory {
	if a == nil || limit.Enforced || limit.Bytes < limit.Physical {
		return limit
	}
	bytes, err := slurm.NodeMemory(ctx, a.job, a.ask)
	if err != nil {
		a.log.Debug("the memory of the job is not known: " + err.Error())
	}
	if err == nil && bytes > 0 && bytes < limit.Bytes {
		limit.Bytes, limit.Source = bytes, "the job's memory, as scontrol says"
	}
	return limit
}

// killWait reads Slurm's setting, "30 sec" in the controller's answer.
func killWait(config slurm.Config) time.Duration {
	number, _, _ := strings.Cut(config.Get("KillWait"), " ")
	seconds, err := strconv.Atoi(number)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// grace is how long a workload may take to end after a signal: Slurm kills
// everything KillWait after its SIGTERM.
func (a *allocation) grace(signal syscall.Signal) time.Duration {
	if a == nil {
		return localGrace
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.killWait == 0 {
		return localGrace
	}
	grace := min(maxGrace, max(0, a.killWait-takeDownTime))
	if signal == syscall.SIGINT {
		grace = min(grace, localGrace)
	}
	return grace
}

// reason tells the time limit from other causes of the same signal.
func (a *allocation) reason(cause error) error {
	var reason *interrupted
	if a == nil || !errors.As(cause, &reason) || reason.signal != syscall.SIGTERM {
		return cause
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.end.IsZero() || a.now().Before(a.end.Add(-time.Second)) {
		return cause
	}
	return &Failure{Code: ExitTimeLimit, Err: fmt.Errorf("the time limit of job %s was over before the workload ended: ask Slurm for more with --time", a.job.ID)}
}

// warnings are what is odd about the step, given what the process may really
// use.
func (a *allocation) warnings(cpus int, memory uint64) string {
	if a == nil {
		return ""
	}
	return slurm.StepSmallerThanAllocation(a.job, cpus, memory)
}
