package linux

import (
	"errors"

	"golang.org/x/sys/unix"
)

// WaitForClose returns when no process has the other end of a pipe open.
func WaitForClose(fd int) {
	for {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		if poll[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0 {
			return
		}
	}
}
