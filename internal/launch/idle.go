package launch

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/proof"
)

// lookLimit bounds how long an idle task looks for the acting task, which slurmd
// starts at the same moment.
const lookLimit = 5 * time.Second

// idle runs in every task that is not the first one of its node, and returns when
// the first one ends. It must not end earlier, because srun (--wait, WaitTime) may
// take the first end of a task for the beginning of the step's end. It must not stay
// longer, because it would keep the step alive.
//
// Slurm sends its signals to every task, so a signal also ends the idle ones,
// with the same exit code.
func idle(ctx context.Context, job slurm.Job, options Options) error {
	if proof.UsePMI(ctx, job, options.Spec.Network.Folder, options.Getenv) {
		// The acting task reports whether the exchange works.
		_, _ = proof.Exchange(ctx, job, options.Getenv)
	}
	own, err := strconv.Atoi(options.Getenv("SLURM_TASK_PID"))
	if err != nil {
		return nil
	}
	acting, err := findActing(ctx, own)
	if err != nil || acting < 0 {
		return err
	}
	defer unix.Close(acting)
	return linux.AwaitPidfd(ctx, acting)
}

// findActing returns a pidfd of the first task on this node, which is a child of
// the same slurmstepd. It returns -1 if there is none.
func findActing(ctx context.Context, own int) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	for {
		siblings, err := linux.Siblings(own)
		if err != nil {
			return -1, err
		}
		for _, pid := range siblings {
			fd, err := unix.PidfdOpen(pid, 0)
			if err != nil {
				continue
			}
			if isFirstTask(pid) {
				return fd, nil
			}
			unix.Close(fd)
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return -1, nil
			}
			return -1, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func isFirstTask(pid int) bool {
	environment, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	return err == nil && bytes.Contains(append([]byte{0}, environment...), []byte("\x00SLURM_LOCALID=0\x00"))
}
