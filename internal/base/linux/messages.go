package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// The functions below use raw system calls, without a notice to Go's scheduler. They never
// block, and a notice takes as much time as a small packet. It takes most if the scheduler
// then gives the thread's P to another thread. See PollBriefly.

// Message is struct mmsghdr: one message of SendMessages or ReceiveMessages.
// The memory that it points to must be on the heap, and stay there.
type Message struct {
	unix.Msghdr
	// Length is the number of bytes sent or received.
	Length uint32
	_      [4]byte
}

// SendMessages calls sendmmsg(2) without an allocation. It returns the number of
// messages that the kernel accepted, and an error only if it accepted none.
func SendMessages(fd int, messages []Message) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(messages))), uintptr(len(messages)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// ReceiveMessages calls recvmmsg(2) without an allocation. It does not block.
func ReceiveMessages(fd int, messages []Message) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(messages))), uintptr(len(messages)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// Read calls read(2) for a descriptor that does not block.
func Read(fd int, into []byte) (int, error) {
	n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(into))), uintptr(len(into)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// WriteVector calls writev(2) without an allocation.
func WriteVector(fd int, vector []unix.Iovec) error {
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(vector))), uintptr(len(vector)))
	if errno != 0 {
		return errno
	}
	return nil
}

// PollBriefly calls ppoll(2) with a timeout of a few milliseconds at most: the
// thread keeps its P (a place in Go's scheduler) while it waits. A program with such
// threads must add their number to GOMAXPROCS.
func PollBriefly(fds []unix.PollFd, timeout *unix.Timespec) (int, error) {
	// The kernel writes back what is left of the timeout.
	left := *timeout
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))), uintptr(len(fds)), uintptr(unsafe.Pointer(&left)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
