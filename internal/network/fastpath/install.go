package fastpath

import (
	"errors"
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// watchAgain adds a connection to an epoll instance of the caller, where it replaces the
// old socket. The kernel identifies an entry by file and number, so a thread with its
// own table of descriptors has to add it under the caller's number.
func (t *trap) watchAgain(epoll, number, connection int, w watch) error {
	instance, err := unix.PidfdGetfd(t.thread, epoll, 0)
	if err != nil {
		return fmt.Errorf("fetch epoll instance %d of thread %d: %w", epoll, t.tid(), err)
	}
	defer unix.Close(instance)
	linux.OnNewThread(func() { err = addUnder(instance, number, connection, w) })
	if err != nil {
		return fmt.Errorf("add descriptor %d to epoll instance %d of thread %d: %w", number, epoll, t.tid(), err)
	}
	return nil
}

// addUnder adds a connection to an epoll instance under the descriptor number. It gives the
// calling thread its own table of descriptors, so the thread must end afterwards.
func addUnder(instance, number, connection int, w watch) error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return err
	}
	// A copy in this table must not keep closed files open, least of all the replaced
	// socket, which epoll would go on reporting. close_range accepts any valid range, and
	// the thread ends with its table.
	defer func() { _ = unix.CloseRange(0, math.MaxUint32, 0) }()
	if instance == number {
		moved, err := unix.FcntlInt(uintptr(instance), unix.F_DUPFD_CLOEXEC, number+1)
		if err != nil {
			return err
		}
		instance = moved
	}
	if connection != number {
		if err := unix.Dup3(connection, number, unix.O_CLOEXEC); err != nil {
			return err
		}
	}
	err := unix.EpollCtl(instance, unix.EPOLL_CTL_ADD, number, &unix.EpollEvent{
		Events: w.events, Fd: int32(uint32(w.data)), Pad: int32(uint32(w.data >> 32)),
	})
	if errors.Is(err, unix.EEXIST) {
		return nil // a predecessor has done it
	}
	return err
}
