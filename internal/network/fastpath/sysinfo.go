package fastpath

import (
	"errors"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// sysinfo answers sysinfo(2) with the memory of the caller's container. glibc's
// sysconf(_SC_PHYS_PAGES) uses sysinfo(2), and the JVM, OpenMPI and Python use sysconf. The
// Switch answers it, because a task can have only one seccomp listener.
func (t *trap) sysinfo() {
	memory := t.from.record.memory
	answer, err := linux.LimitedSysinfo(memory)
	if memory == 0 || err != nil {
		t.pass()
		return
	}
	if !t.waits() {
		t.cancelled()
		return
	}
	switch err := linux.WriteMemory(t.tid(), t.call().Args[0], answer, 0, nil); {
	case err == nil:
		t.answer(0, 0)
	case errors.Is(err, unix.EFAULT):
		t.answer(0, unix.EFAULT)
	default:
		t.pass()
	}
}
