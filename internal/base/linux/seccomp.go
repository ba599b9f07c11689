package linux

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations and flags of seccomp(2) that golang.org/x/sys does not name.
const (
	seccompGetActionAvail  = 2
	seccompGetNotifSizes   = 3
	seccompRetUserNotif    = 0x7fc00000
	seccompIoctlNotifAddFD = 0x40182103 // SECCOMP_IOW(3, struct seccomp_notif_addfd)
)

// SeccompSizes holds the sizes, in bytes, of the structures that the running kernel
// uses for user notification (Linux 5.0).
type SeccompSizes struct {
	Notification, Response, Data uint16
}

// SeccompNotifySizes asks the kernel for its notification structures. It fails
// where the kernel has no user notification, or where a filter already
// installed (a container's) forbids seccomp itself.
func SeccompNotifySizes() (SeccompSizes, error) {
	action := uint32(seccompRetUserNotif)
	if err := seccomp(seccompGetActionAvail, 0, unsafe.Pointer(&action)); err != nil {
		return SeccompSizes{}, fmt.Errorf("look for the seccomp action user_notif: %w", err)
	}
	var sizes SeccompSizes
	if err := seccomp(seccompGetNotifSizes, 0, unsafe.Pointer(&sizes)); err != nil {
		return SeccompSizes{}, fmt.Errorf("get the sizes of seccomp notifications: %w", err)
	}
	return sizes, nil
}

// SeccompListener installs a filter that allows everything on the calling thread,
// and returns its notification descriptor. It only tests whether that works. The
// filter cannot be removed, so the caller must let the thread end.
func SeccompListener() (int, error) {
	return ForceFilter([]unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}})
}

// ForceFilter works like InstallFilter, but for any thread: if the thread has no
// capabilities in its user namespace, it sets no_new_privs, which cannot be cleared
// again.
func ForceFilter(program []unix.SockFilter) (listener int, err error) {
	listener, err = InstallFilter(program)
	if !errors.Is(err, unix.EACCES) {
		return listener, err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, fmt.Errorf("set no_new_privs: %w", err)
	}
	return InstallFilter(program)
}

// SeccompAddFDSend checks that the listener can put a descriptor into the
// waiting process and answer in one step (SECCOMP_ADDFD_FLAG_SEND, Linux 5.14).
// Nothing is waiting, so a kernel that knows the flag answers ENOENT.
func SeccompAddFDSend(listener int) error {
	request := struct {
		id                           uint64
		flags, source, target, extra uint32
	}{flags: seccompAddFDSend, source: uint32(listener)}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), seccompIoctlNotifAddFD, uintptr(unsafe.Pointer(&request)))
	if errno == unix.ENOENT {
		return nil
	}
	return fmt.Errorf("put a descriptor into a waiting process: %w", errno)
}

func seccomp(operation, flags uintptr, args unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, operation, flags, uintptr(args)); errno != 0 {
		return errno
	}
	return nil
}
