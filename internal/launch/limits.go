package launch

import (
	"fmt"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/supervisor"
)

const (
	// leastAddressSpace is what the parts of a cluster map, and do not use, in
	// bytes.
	leastAddressSpace = 64 << 30
	// usualStack is what most systems allow; nft and runc need some of it.
	usualStack = 8 << 20
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
	for _, limit := range []struct {
		resource int
		least    uint64
		option   string
		what     string
	}{
		{unix.RLIMIT_AS, leastAddressSpace, "-v", "address space"},
		{unix.RLIMIT_STACK, usualStack, "-s", "the stack"},
	} {
		var now unix.Rlimit
		if err := unix.Getrlimit(limit.resource, &now); err != nil || now.Cur >= limit.least {
			continue
		}
		now.Cur = now.Max
		if err := unix.Setrlimit(limit.resource, &now); err != nil || now.Max < limit.least {
			return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start with so small a limit of %s: 'ulimit -H %s' has to allow %d KiB; with Slurm, submit with --propagate=NONE",
				limit.what, limit.option, limit.least>>10))
		}
	}
	return nil
}
