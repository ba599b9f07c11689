package linux

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// StartFDHolder starts a process that shares this process's descriptor table and
// does nothing else. When this process dies, the descriptors stay open, and their
// peers see no end. The user's processes may fetch them (unix.PidfdGetfd) unless
// Yama's ptrace_scope is 2 or 3. The process ends when nobody reads the pipe whose
// writing end is lifeline; the caller must wait for it.
func StartFDHolder(lifeline int) (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A signal must not run Go's handler in that process.
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

// cloneFDHolder calls clone(2). The child runs a few instructions of assembly
// instead of a program.
//
//go:noescape
func cloneFDHolder(lifeline uintptr) (pid int)
