package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Kinds of kcmp(2).
const (
	kcmpFile     = 0
	kcmpFiles    = 2
	kcmpEpollTFD = 7
)

// SameFile reports whether two descriptors refer to the same open file. The
// processes may be threads. A descriptor that is not open equals none.
func SameFile(pid1, fd1, pid2, fd2 int) bool {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFile, uintptr(fd1), uintptr(fd2), 0)
	return errno == 0 && r == 0
}

// SameDescriptors reports whether two threads share one descriptor table.
func SameDescriptors(pid1, pid2 int) bool {
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(pid1), uintptr(pid2), kcmpFiles, 0, 0, 0)
	return errno == 0 && r == 0
}

// InEpoll reports whether an epoll instance of a process watches a file under the
// number fd. The file is a descriptor of the process owner, which may be the same
// process.
func InEpoll(pid, epoll, fd int, owner, file int) bool {
	slot := struct{ epoll, fd, offset uint32 }{uint32(epoll), uint32(fd), 0}
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(owner), uintptr(pid), kcmpEpollTFD, uintptr(file), uintptr(unsafe.Pointer(&slot)), 0)
	return errno == 0 && r == 0
}
