package launch

import (
	"fmt"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/launch/supervisor"
)

// workerWatchers counts the inotify instances that the roles of a node without a
// control plane create; see probe.HeadWatchers. The kernel counts the instances
// of all programs of a user on a machine. The usual limit is 128.
const workerWatchers = 5

// checkWatchers returns an error unless this user can create needed inotify instances now.
func checkWatchers(needed int) error {
	for range needed {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("make the %d inotify instances that a node needs: %w; %s", needed, err, supervisor.MoreWatchers()))
		}
		defer unix.Close(fd)
	}
	return nil
}

// raiseLimits raises limits of the user's shell that are too low for a cluster.
// Slurm passes these limits on from the login host. Memory is not among them, because the
// job limits it.
func raiseLimits() error {
	for _, limit := range probe.ProcessLimits() {
		var now unix.Rlimit
		if err := unix.Getrlimit(limit.Resource, &now); err != nil || now.Cur >= limit.Least {
			continue
		}
		now.Cur = now.Max
		if err := unix.Setrlimit(limit.Resource, &now); err != nil || now.Max < limit.Least {
			return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("the limit of %s is too small: %s", limit.What, limit.Remedy()))
		}
	}
	return nil
}
