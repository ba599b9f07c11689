package linux

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Notification is struct seccomp_notif: a system call that waits for an answer.
type Notification struct {
	// ID identifies the call to its listener.
	ID uint64
	// Thread is the caller, as the receiver's PID namespace numbers it.
	Thread      uint32
	Flags       uint32
	Call        int32
	Arch        uint32
	Instruction uint64
	Args        [6]uint64
}

type notificationAnswer struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// seccompAddFDSend is a flag of addedDescriptor that golang.org/x/sys does not name.
const seccompAddFDSend = 1 << 1

type addedDescriptor struct {
	id                            uint64
	flags, source, target, fdFlag uint32
}

// InstallFilter installs a seccomp filter with a listener on the calling thread. It
// cannot be removed. A thread that has neither capabilities in its user namespace
// nor no_new_privs gets EACCES. Since Linux 5.19, only a fatal signal ends a call
// between its reception and its answer; Interrupted reports other signals. Before Linux
// 6.18 and the stable kernels of October 2025, which have its commit cce436aafc2a, another
// signal at the moment of the answer can still end the call. It cannot if the caller has
// received a descriptor during the call.
func InstallFilter(program []unix.SockFilter) (listener int, err error) {
	fd, errno := setFilter(program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV)
	if errno == unix.EINVAL {
		fd, errno = setFilter(program, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	}
	if errno != 0 {
		return -1, fmt.Errorf("install a seccomp filter with a listener: %w", errno)
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}

// setFilter installs a seccomp filter. The result is the listener, if the flags
// ask for one.
func setFilter(program []unix.SockFilter, flags uintptr) (uintptr, unix.Errno) {
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	result, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&filter)))
	runtime.KeepAlive(program)
	return result, errno
}

// ReceiveNotification waits for a call. The memory at n must be zero. ENOENT
// reports that the call no longer exists.
func ReceiveNotification(listener int, n *Notification) error {
	_, err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(n))
	return err
}

// AnswerNotification makes the call return value, or -1 with an error number.
func AnswerNotification(listener int, id uint64, value int64, errno unix.Errno) error {
	answer := notificationAnswer{id: id, value: value, errno: -int32(errno)}
	_, err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
	return err
}

// ContinueNotification lets the kernel execute the call as usual.
func ContinueNotification(listener int, id uint64) error {
	answer := notificationAnswer{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	_, err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
	return err
}

// NotificationWaits reports whether the caller still waits for the answer. If it
// does, all that was read about its process before belongs to that process, and not
// to another one with the same number.
func NotificationWaits(listener int, id uint64) bool {
	_, err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id))
	return err == nil
}

// RestartCall is the answer to a call of an Interrupted thread: the kernel restarts
// the call, or fails it with EINTR, as the handler of the signal requires. Without
// a signal the program would receive this number.
const RestartCall unix.Errno = 512 // ERESTARTSYS

// Interrupted reports whether a signal, or another reason to stop the thread,
// has arrived during a received call. The thread then waits uninterruptibly, in state D.
// It does so, too, after a descriptor was put into its process.
func Interrupted(thread int) bool {
	number := strconv.Itoa(thread)
	// The stat file of the thread, because that of the process sums up all its threads.
	fd, err := unix.Open("/proc/"+number+"/task/"+number+"/stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var b [64]byte
	n, err := unix.Read(fd, b[:])
	state := bytes.LastIndexByte(b[:max(0, n)], ')') + len(") ")
	return err == nil && state < n && b[state] == 'D'
}

// ReplaceDescriptor installs a duplicate of source under the number target in the
// caller, and closes what was there. The call still waits for its answer.
func ReplaceDescriptor(listener int, id uint64, source, target int, closeOnExec bool) error {
	_, err := addDescriptor(listener, addedDescriptor{id: id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, source: uint32(source), target: uint32(target)}, closeOnExec)
	return err
}

// GiveDescriptor installs a duplicate of source under a free number in the caller,
// and returns the number. The call still waits for its answer.
// Where MayLoseAnswers is true, AnswerNotification can lose the number.
func GiveDescriptor(listener int, id uint64, source int, closeOnExec bool) (number int, err error) {
	return addDescriptor(listener, addedDescriptor{id: id, source: uint32(source)}, closeOnExec)
}

// AnswerWithDescriptor installs a duplicate of source under a free number in the caller,
// and makes the call return the number. If a signal ends the call, AnswerWithDescriptor does
// neither, and returns an error. The calling thread must block signals: if it is
// interrupted, or dies, before the caller has run, the call returns 0 without a descriptor.
func AnswerWithDescriptor(listener int, id uint64, source int, closeOnExec bool) error {
	_, err := addDescriptor(listener, addedDescriptor{id: id, flags: seccompAddFDSend, source: uint32(source)}, closeOnExec)
	return err
}

// MayLoseAnswers reports whether a signal can end a call between its reception and its
// answer, as before Linux 5.19. A signal at the moment of the answer can then make the
// kernel restart the call although AnswerNotification succeeds. Where the result is false,
// no answer that follows GiveDescriptor is lost; for other answers see InstallFilter.
func MayLoseAnswers() bool {
	// Without a program, a kernel that knows the flags answers EFAULT.
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER|unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, 0)
	return errno == unix.EINVAL
}

func addDescriptor(listener int, added addedDescriptor, closeOnExec bool) (number int, err error) {
	if closeOnExec {
		added.fdFlag = unix.O_CLOEXEC
	}
	return notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&added))
}

// WakeOnSameCPU asks the kernel to wake the caller on the CPU that answers, and the
// receiver on the CPU of the call (Linux 6.6).
func WakeOnSameCPU(listener int) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SET_FLAGS, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP); errno != 0 {
		return errno
	}
	return nil
}

func notifyIoctl(listener int, request uintptr, argument unsafe.Pointer) (int, error) {
	for {
		value, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), request, uintptr(argument))
		switch errno {
		case 0:
			return int(value), nil
		case unix.EINTR:
		default:
			return -1, errno
		}
	}
}

// ReadMemory fills b from the memory of a thread's process. It returns EFAULT if only a
// part could be read.
func ReadMemory(thread int, address uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	remote := unix.RemoteIovec{Base: uintptr(address), Len: len(b)}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(thread), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	return memoryError(n, len(b), errno)
}

// WriteMemory writes a and b into the memory of a thread's process, in one call. It
// returns EFAULT if only a part could be written.
func WriteMemory(thread int, addressA uint64, a []byte, addressB uint64, b []byte) error {
	local := [2]unix.Iovec{{Base: unsafe.SliceData(a), Len: uint64(len(a))}, {Base: unsafe.SliceData(b), Len: uint64(len(b))}}
	remote := [2]unix.RemoteIovec{{Base: uintptr(addressA), Len: len(a)}, {Base: uintptr(addressB), Len: len(b)}}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_WRITEV, uintptr(thread), uintptr(unsafe.Pointer(&local)), 2, uintptr(unsafe.Pointer(&remote)), 2, 0)
	return memoryError(n, len(a)+len(b), errno)
}

func memoryError(n uintptr, want int, errno unix.Errno) error {
	switch {
	case errno != 0:
		return errno
	case int(n) != want:
		return unix.EFAULT
	}
	return nil
}

// IsListener reports whether a descriptor is a seccomp filter's listener.
func IsListener(fd int) bool {
	var none uint64
	_, err := notifyIoctl(fd, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&none))
	return err == nil || errors.Is(err, unix.ENOENT)
}
