package fastpath

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath/filter"
	"berth.dev/berth/internal/network/fastpath/sock"
)

// Check returns an error that explains why this host cannot run a Switch, or nil. Without
// it, calls of pods would wait forever for a Switch that cannot start.
func Check() error {
	if _, err := linux.SeccompNotifySizes(); err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
	}
	defer unix.Close(socket)
	if _, err := sock.NetworkCookie(socket); err != nil {
		return fmt.Errorf("recognize sockets of the host (Linux 5.14 can): %w", err)
	}
	if !linux.SameFile(os.Getpid(), socket, os.Getpid(), socket) {
		return errNoCompare
	}
	linux.OnNewThread(func() {
		var listener int
		if listener, err = linux.ForceFilter(filter.New(filter.Rules{})); err == nil {
			unix.Close(listener)
		}
	})
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: this process already has a seccomp filter with a listener, as in a container of bypass4netns", err)
	}
	if err != nil {
		return err
	}
	// Without Yama there is no such file.
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if value, parseErr := strconv.Atoi(string(bytes.TrimSpace(scope))); err == nil && parseErr == nil && value > 1 {
		return fmt.Errorf("take over from a process that died: kernel.yama.ptrace_scope is %d; %s", value, yamaRemedy)
	}
	return nil
}

var errNoCompare = errors.New("compare descriptors: the kernel needs CONFIG_KCMP")

const yamaRemedy = "an administrator can run: sysctl kernel.yama.ptrace_scope=1"
