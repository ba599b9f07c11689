package fastpath

import (
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// fdHolder is the process that holds the descriptors of a Switch: it shares their table and
// does nothing else. It is replaced when it dies.
type fdHolder struct {
	*shared
	lifeline *os.File
	record   *record
	pid      int
	fd       int // a pidfd
	token    uint64
}

// start starts the process, and records its process ID in the state. It returns an error
// if this process may not fetch descriptors from it.
func (h *fdHolder) start() error {
	pid, err := linux.StartFDHolder(int(h.lifeline.Fd()))
	if err != nil {
		return err
	}
	h.pid = pid
	if h.fd, err = unix.PidfdOpen(pid, 0); err != nil {
		return fmt.Errorf("watch the process that keeps descriptors: %w", err)
	}
	// If its descriptors cannot be fetched, as with Yama's ptrace_scope 2, pods would
	// hang forever when this process dies.
	probe, err := unix.PidfdGetfd(h.fd, int(h.lifeline.Fd()), 0)
	if err != nil {
		_ = unix.PidfdSendSignal(h.fd, unix.SIGKILL, nil, 0)
		_ = linux.AwaitChild(pid)
		return fmt.Errorf("fetch a descriptor from the process that keeps them (%s): %w", yamaRemedy, err)
	}
	unix.Close(probe)
	if err := h.reactor.add(h.fd, unix.EPOLLIN, h, &h.token); err != nil {
		return err
	}
	if h.record == nil {
		h.record = h.state.take(kindFDHolder, netip.Addr{})
	}
	h.record.fd = int32(pid)
	return nil
}

// ready replaces the process after its death.
func (h *fdHolder) ready(uint32) {
	h.reactor.drop(h.token)
	unix.Close(h.fd)
	_ = linux.AwaitChild(h.pid)
	if err := h.start(); err != nil {
		h.log.Error("connections being made will not survive the death of this process", "err", err)
	}
}
