package linux

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ProcessState returns the state letter of a process, or 0 when there is no
// such process.
func ProcessState(pid int) byte {
	s, _ := ReadStat("/proc", pid)
	return s.State
}

// Resume continues a process that a signal has stopped, and reports whether it
// was stopped.
func Resume(pid int) bool {
	return ProcessState(pid) == ProcessStopped && unix.Kill(pid, unix.SIGCONT) == nil
}

// AwaitChild waits until a child of this process has ended, and reaps it. It returns nil
// for a process that is not a child, or was reaped already.
func AwaitChild(pid int) error {
	for {
		_, err := unix.Wait4(pid, nil, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return nil
		default:
			return err
		}
	}
}

// threadGroup returns the process of a thread.
func threadGroup(thread int) (int, error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(thread) + "/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(content)) {
		if text, found := strings.CutPrefix(line, "Tgid:"); found {
			return strconv.Atoi(strings.TrimSpace(text))
		}
	}
	return 0, fmt.Errorf("read the status of thread %d: %w", thread, unix.ESRCH)
}

// OpenThread returns a pidfd of a thread. Before Linux 6.9 only processes have
// pidfds, so it returns the pidfd of the thread's process. A thread with its own
// descriptor table has none then.
func OpenThread(thread int) (int, error) {
	fd, err := unix.PidfdOpen(thread, unix.O_EXCL) // PIDFD_THREAD
	if !errors.Is(err, unix.EINVAL) {
		return fd, err
	}
	process, err := threadGroup(thread)
	if err != nil {
		return -1, err
	}
	if process != thread && !SameDescriptors(process, thread) {
		return -1, fmt.Errorf("open thread %d: it shares no descriptors with its process %d: %w", thread, process, unix.EXDEV)
	}
	return unix.PidfdOpen(process, 0)
}

// ProcessName returns a name that no other process has had since the host was booted:
// the process id and the start time in clock ticks. It is empty if there is no such
// process.
func ProcessName(pid int) string {
	s, err := ReadStat("/proc", pid)
	if err != nil || pid <= 0 {
		return ""
	}
	return fmt.Sprintf("%d:%d", pid, s.Start)
}
