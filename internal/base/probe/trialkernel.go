package probe

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

func tryPidfd() error {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// tryKeyring joins a new session keyring, as the sandbox of each node does. The
// keyring ends with the thread.
func tryKeyring() (err error) {
	linux.OnNewThread(func() { err = linux.JoinSessionKeyring() })
	return err
}

func tryInotify() error {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.InotifyAddWatch(fd, "/", unix.IN_CREATE)
	return err
}

// tryNotify installs a filter with a listener on this thread. The first answer
// is about filters at all, the others about what the fast path needs.
func tryNotify(report func(string, error)) {
	sizes, err := linux.SeccompNotifySizes()
	if err == nil && sizes.Notification == 0 {
		err = fmt.Errorf("the kernel names no size: %w", unix.ENOSYS)
	}
	listener, installErr := linux.SeccompListener()
	report(trialSeccomp, installErr)
	if err == nil {
		err = installErr
	}
	report(trialNotify, err)
	if err != nil {
		return
	}
	report(trialNotifySend, linux.SeccompAddFDSend(listener))
}
