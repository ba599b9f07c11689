// Package sysinfo answers the system call sysinfo(2) of a container's processes
// with the memory of the container. glibc's sysconf(_SC_PHYS_PAGES) asks for it,
// and so do the JVM and Python.
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
	"unsafe"

	"golang.org/x/sys/unix"
)

// OnThread runs f in a new goroutine, on a thread that ends with f.
func OnThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// Go never ends the main thread. While it is locked here, the other
		// goroutine gets another thread.
		defer runtime.UnlockOSThread()
		locked := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(locked)
			f()
		}()
		<-locked
	}()
}

// Install installs a filter that traps sysinfo(2) on the calling thread, and on
// all that it starts from now on, and returns the listener. No filter can be
// removed, so the thread must be one of OnThread.
//
// Programs of another architecture than the kernel's see the machine.
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
	// Before Linux 5.19 a signal with a handler restarts a call that was received.
	fd, err := setFilter(program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if errors.Is(err, unix.EINVAL) {
		fd, err = setFilter(program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	}
	if err != nil {
		return nil, fmt.Errorf("trap sysinfo: %w", err)
	}
	unix.CloseOnExec(fd)
	// os.NewFile gives only non-blocking descriptors to Go's poller.
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("trap sysinfo: %w", err)
	}
	return os.NewFile(uintptr(fd), "seccomp listener"), nil
}

func setFilter(program []unix.SockFilter, flags uintptr) (int, error) {
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&filter)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
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
			// To receive a call ignores O_NONBLOCK, so ask first whether there is one.
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

// notification is struct seccomp_notif.
type notification struct {
	id          uint64
	thread      uint32
	flags       uint32
	call        int32
	arch        uint32
	instruction uint64
	args        [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// answer receives a call and answers it. Errors of the listener mean that the
// caller no longer waits.
func answer(listener int, memory uint64) {
	var call notification
	if ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&call)) != nil {
		return
	}
	reply := response{id: call.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	var info unix.Sysinfo_t
	if memory > 0 && unix.Sysinfo(&info) == nil {
		limit(&info, memory)
		// The thread's number may be another thread's if the caller has ended.
		if ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&call.id)) != nil {
			return
		}
		switch err := write(int(call.thread), uintptr(call.args[0]), &info); {
		case err == nil:
			reply.flags = 0
		case errors.Is(err, unix.EFAULT):
			reply.flags, reply.errno = 0, -int32(unix.EFAULT)
		}
	}
	_ = ioctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&reply))
}

// limit makes info describe a machine with that many bytes of memory. The memory
// that the container uses is not subtracted from the free memory.
func limit(info *unix.Sysinfo_t, memory uint64) {
	unit := uint64(max(1, info.Unit))
	info.Totalram = min(memory, info.Totalram*unit)
	info.Freeram = min(info.Totalram, info.Freeram*unit)
	info.Sharedram, info.Bufferram, info.Totalswap, info.Freeswap, info.Totalhigh, info.Freehigh = 0, 0, 0, 0, 0, 0
	info.Unit = 1
}

// write copies info into the memory of a thread's process.
func write(thread int, address uintptr, info *unix.Sysinfo_t) error {
	size := int(unsafe.Sizeof(*info))
	local := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(info)), Len: uint64(size)}}
	n, err := unix.ProcessVMWritev(thread, local, []unix.RemoteIovec{{Base: address, Len: size}}, 0)
	if err == nil && n != size {
		err = unix.EFAULT
	}
	return err
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}
