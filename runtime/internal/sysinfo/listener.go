// Package sysinfo answers the system call sysinfo(2) of a container's processes
// with the memory of the container. glibc's sysconf(_SC_PHYS_PAGES) uses sysinfo(2), and
// so do the JVM and Python.
//
// The calls arrive at a seccomp listener in the shim. A process has at most one
// listener, so pods with the fast path are not for this package: their listener
// belongs to the net role, which answers the call too.
package sysinfo

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/linux"
)

// Install installs a filter on the calling thread that traps sysinfo(2), and returns the
// listener. Processes and threads that the thread starts later inherit the filter. No
// filter can be removed, so the caller runs in linux.OnNewThread.
//
// A program of an architecture other than the kernel's gets the memory of the machine.
func Install() (*os.File, error) {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("trap sysinfo: %w on %s", errors.ErrUnsupported, runtime.GOARCH)
	}
	const offsetCall, offsetArch = 0, 4 // in struct seccomp_data
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetArch},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: arch, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offsetCall},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SYSINFO, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	fd, err := linux.InstallFilter(program)
	if err != nil {
		return nil, fmt.Errorf("trap sysinfo: %w", err)
	}
	// os.NewFile gives only non-blocking descriptors to Go's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("trap sysinfo: %w", err)
	}
	return os.NewFile(uintptr(fd), "seccomp listener"), nil
}

// Serve answers calls until no process has the filter any more, and closes the
// listener. memory returns the bytes that a call reports; 0 leaves the call to
// the kernel.
func Serve(listener *os.File, memory func() uint64) error {
	defer listener.Close()
	conn, err := listener.SyscallConn()
	if err != nil {
		return fmt.Errorf("answer sysinfo: %w", err)
	}
	// The poller wakes this goroutine, so that no thread waits.
	err = conn.Read(func(fd uintptr) (done bool) {
		for {
			// Receiving a call ignores O_NONBLOCK, so ask first whether there is one.
			poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(poll, 0)
			switch {
			case errors.Is(err, unix.EINTR):
			case err != nil || poll[0].Revents&unix.POLLIN == 0:
				return err != nil || n > 0 // POLLHUP: no process has the filter
			default:
				answer(int(fd), memory())
			}
		}
	})
	if err != nil {
		return fmt.Errorf("wait for calls of sysinfo: %w", err)
	}
	return nil
}

// answer receives a call and answers it. Errors of the listener mean that the
// caller no longer waits.
func answer(listener int, memory uint64) {
	var call linux.Notification
	if linux.ReceiveNotification(listener, &call) != nil {
		return
	}
	info, err := linux.LimitedSysinfo(memory)
	if memory == 0 || err != nil {
		_ = linux.ContinueNotification(listener, call.ID)
		return
	}
	// The thread's number may be another thread's if the caller has ended.
	if !linux.NotificationWaits(listener, call.ID) {
		return
	}
	switch err := linux.WriteMemory(int(call.Thread), call.Args[0], info, 0, nil); {
	case err == nil:
		_ = linux.AnswerNotification(listener, call.ID, 0, 0)
	case errors.Is(err, unix.EFAULT):
		_ = linux.AnswerNotification(listener, call.ID, 0, unix.EFAULT)
	default:
		_ = linux.ContinueNotification(listener, call.ID)
	}
}
