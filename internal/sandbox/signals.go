package sandbox

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// outlived returns the signals that may reach every process of a job at once
// (scancel, time limit, Ctrl-C): the supervisor orders the end instead.
func outlived() []syscall.Signal {
	return []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM}
}

// OutliveSignals makes this process indifferent to signals that reach every
// process of a job at once. The signals are caught, not ignored: a child would
// inherit ignoring, and with it every process of every pod.
func OutliveSignals() {
	channel := make(chan os.Signal, 1)
	for _, each := range outlived() {
		signal.Notify(channel, each)
	}
}

// maskSignals blocks the same signals in what this goroutine starts until the
// returned function is called, so that a role survives them from its first
// instruction, and so does all that it starts itself. A role that catches one of
// them unblocks it by that (os/signal); the shim unblocks all for programs of
// containers.
func maskSignals() (unmask func(), err error) {
	runtime.LockOSThread() // a child inherits the mask of the thread that forks
	var blocked, before unix.Sigset_t
	for _, each := range outlived() {
		blocked.Val[0] |= 1 << (each - 1)
	}
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, &blocked, &before); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("block signals for a role: %w", err)
	}
	return func() {
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) // it worked a moment ago
		runtime.UnlockOSThread()
	}, nil
}
