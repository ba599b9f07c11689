package task

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// dropWatches closes the inotify instances of this process. containerd's service makes
// one for each container, to learn from memory.events that the kernel killed one of its
// processes for lack of memory. The service has no option to make none (containerd 2.3,
// internal/oom).
// On a host with only cgroup2, and nothing delegated, that file belongs to the group of
// the whole job: each kill would be reported for all containers, and the watches would
// use up the instances of the user, 128 by default.
//
// The service keeps the number of its descriptor, and closes it at the container's end. Until
// then the number refers to /dev/null. While this function runs, no descriptor is closed and
// its number used again, because the container's process waits to be started.
func dropWatches() error {
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list descriptors: %w", err)
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil || !strings.HasSuffix(target, "inotify") {
			continue // closed since
		}
		fd, err := strconv.Atoi(entry.Name())
		if err != nil {
			return fmt.Errorf("list descriptors: %w", err)
		}
		null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", os.DevNull, err)
		}
		err = unix.Dup3(null, fd, unix.O_CLOEXEC)
		_ = unix.Close(null)
		if err != nil {
			return fmt.Errorf("close the inotify instance %d: %w", fd, err)
		}
	}
	return nil
}
