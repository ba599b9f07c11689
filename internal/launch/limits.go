package launch

import (
	"fmt"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/launch/supervisor"
)

// workerWatchers counts the instances of inotify that the roles of a node without
// a control plane make; see probe.HeadWatchers. The kernel counts them by user, for
// all programs on a machine together; 128 is its usual limit.
const workerWatchers = 5

// checkWatchers refuses a node whose roles would fail for want of inotify.
func checkWatchers(needed int) error {
	for range needed {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("make the %d inotify instances that a node needs: %w; %s", needed, err, supervisor.MoreWatchers))
		}
		defer unix.Close(fd)
	}
	return nil
}

// raiseLimits takes back the limits of the user's shell that no cluster can
// live with, which Slurm passes on from the login host. Memory is limited by
// what the job has.
func raiseLimits() error {
	for _, limit := range probe.ProcessLimits() {
		var now unix.Rlimit
		if err := unix.Getrlimit(limit.Resource, &now); err != nil || now.Cur >= limit.Least {
			continue
		}
		now.Cur = now.Max
		if err := unix.Setrlimit(limit.Resource, &now); err != nil || now.Max < limit.Least {
			return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start with so small a limit of %s: %s", limit.What, limit.Remedy()))
		}
	}
	return nil
}
