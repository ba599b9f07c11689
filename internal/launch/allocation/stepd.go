package allocation

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
)

// WatchStepd ends the run in order when the slurmstepd above it is gone. Slurm
// cannot end the step's processes any more then: scancel and the end of the job
// would leave this process and its children behind.
func WatchStepd(ctx context.Context, getenv func(string) string, giveUp context.CancelCauseFunc) {
	task, err := strconv.Atoi(getenv("SLURM_TASK_PID"))
	if err != nil {
		return
	}
	stepd := openStepd(task)
	if stepd < 0 {
		return
	}
	defer unix.Close(stepd)
	if linux.AwaitPidfd(ctx, stepd) == nil {
		giveUp(&exitcode.Error{Code: exitcode.Unavailable, Err: fmt.Errorf("the slurmstepd of this step is gone, so Slurm could not end the run: %w", &Interrupted{syscall.SIGHUP})})
	}
}

// openStepd returns a pidfd of a task's slurmstepd, which is the task's parent. It
// returns -1 if the slurmstepd cannot be found. This process must be the task or descend from it. The variable that
// names the task may come from elsewhere: from a script that was submitted within
// a step, or from a PID namespace with other numbers.
func openStepd(task int) int {
	for pid := os.Getpid(); pid != task; {
		parent, known := linux.Parent(pid)
		if !known || parent <= 1 {
			return -1
		}
		pid = parent
	}
	stepd, known := linux.Parent(task)
	if !known || stepd <= 1 {
		return -1
	}
	fd, err := unix.PidfdOpen(stepd, 0)
	if err != nil {
		return -1
	}
	// Another process may have got the same number in between. The task would
	// have another parent then.
	if again, _ := linux.Parent(task); again != stepd {
		unix.Close(fd)
		return -1
	}
	return fd
}
