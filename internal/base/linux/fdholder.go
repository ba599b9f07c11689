package linux

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartFDHolder makes a process that shares this one's table of descriptors and
// does nothing, so that they stay open, and what waits for them goes on
// waiting, when this process dies. The user's processes may fetch them from it
// (unix.PidfdGetfd); Yama's ptrace_scope 2 and 3 forbid that. It ends when
// nobody reads the pipe whose writing end is lifeline, and must be waited for.
func StartFDHolder(lifeline int) (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A signal must not run Go's handler in there.
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^uint64(0)
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return 0, fmt.Errorf("block signals: %w", err)
	}
	pid = cloneFDHolder(uintptr(lifeline))
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil); err != nil {
		return 0, fmt.Errorf("unblock signals: %w", err)
	}
	if pid < 0 {
		return 0, fmt.Errorf("start the process that keeps descriptors: %w", unix.Errno(-pid))
	}
	return pid, nil
}

// cloneFDHolder is clone(2) without a program: what the child does is a few
// instructions of assembly.
//
//go:noescape
func cloneFDHolder(lifeline uintptr) (pid int)
