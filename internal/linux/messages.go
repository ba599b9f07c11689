package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Message is struct mmsghdr: one message of SendMessages or ReceiveMessages.
// What it points to must be on the heap, and stay there.
type Message struct {
	unix.Msghdr
	// Length is how many bytes were sent or received.
	Length uint32
	_      [4]byte
}

// SendMessages is sendmmsg(2) without an allocation: it returns how many
// messages the kernel took, and an error only where that is none.
func SendMessages(fd int, messages []Message) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(messages))), uintptr(len(messages)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// ReceiveMessages is recvmmsg(2) without an allocation. It waits for nothing.
func ReceiveMessages(fd int, messages []Message) (int, error) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(messages))), uintptr(len(messages)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// WriteVector is writev(2) without an allocation.
func WriteVector(fd int, vector []unix.Iovec) error {
	_, _, errno := unix.Syscall(unix.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(vector))), uintptr(len(vector)))
	if errno != 0 {
		return errno
	}
	return nil
}
