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
	// ID names the call towards its listener.
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

type addedDescriptor struct {
	id                            uint64
	flags, source, target, fdFlag uint32
}

// InstallFilter puts a seccomp filter with a listener on the calling thread. It
// cannot be taken off again. A thread that has neither capabilities in its user
// namespace nor no_new_privs gets EACCES. Since Linux 5.19 a call that was received is
// ended before its answer by what kills the caller, not by other signals, which
// Interrupted tells of.
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

// ReceiveNotification waits for a call. What n points to must be zero. ENOENT
// says that the call is no more.
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

// ContinueNotification lets the kernel do the call as if nobody had asked.
func ContinueNotification(listener int, id uint64) error {
	answer := notificationAnswer{id: id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	_, err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
	return err
}

// NotificationWaits reports whether the caller still waits for the answer. If it
// does, everything learnt about its process before concerns that process, and
// not another process that got the same number.
func NotificationWaits(listener int, id uint64) bool {
	_, err := notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&id))
	return err == nil
}

// RestartCall is the answer to a call of a thread that is Interrupted: the kernel
// begins it again, or has it fail with EINTR, as the signal's handler asks for.
// The program sees it where no signal has come.
const RestartCall unix.Errno = 512 // ERESTARTSYS

// Interrupted reports whether a signal, or another reason to stop the thread,
// has arrived during a received call. A thread waits uninterruptibly from then
// on, and also after a descriptor was put into its process.
func Interrupted(thread int) bool {
	number := strconv.Itoa(thread)
	// Of a process as a whole there would be the sums of all its threads.
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

// ReplaceDescriptor puts a duplicate of source under the number target of the
// caller, whatever was there before. The call still waits for its answer.
func ReplaceDescriptor(listener int, id uint64, source, target int, closeOnExec bool) error {
	_, err := addDescriptor(listener, addedDescriptor{id: id, flags: unix.SECCOMP_ADDFD_FLAG_SETFD, source: uint32(source), target: uint32(target)}, closeOnExec)
	return err
}

// GiveDescriptor puts a duplicate of source under a free number of the caller,
// and returns that. The call still waits for its answer: with
// SECCOMP_ADDFD_FLAG_SEND, which answers as well, it counts as answered before
// the caller has looked, and returns 0 without a descriptor when this process
// dies in between.
func GiveDescriptor(listener int, id uint64, source int, closeOnExec bool) (number int, err error) {
	return addDescriptor(listener, addedDescriptor{id: id, source: uint32(source)}, closeOnExec)
}

func addDescriptor(listener int, added addedDescriptor, closeOnExec bool) (number int, err error) {
	if closeOnExec {
		added.fdFlag = unix.O_CLOEXEC
	}
	return notifyIoctl(listener, unix.SECCOMP_IOCTL_NOTIF_ADDFD, unsafe.Pointer(&added))
}

// WakeOnSameCPU asks the kernel to run the caller where its answer is given,
// and the receiver where the call was made (Linux 6.6).
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

// ReadMemory fills b from the memory of a thread's process.
func ReadMemory(thread int, address uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	remote := unix.RemoteIovec{Base: uintptr(address), Len: len(b)}
	n, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(thread), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	return memoryError(n, len(b), errno)
}

// WriteMemory writes a and b into the memory of a thread's process, in one call.
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
