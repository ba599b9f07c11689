package fastpath

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// sysinfo answers sysinfo(2) with the memory of the caller's container. glibc's
// sysconf(_SC_PHYS_PAGES) asks for it, and so the JVM, OpenMPI and Python. A task
// has one listener at most, so the answer is due here.
func (t *trap) sysinfo() {
	memory := t.from.record.memory
	var info unix.Sysinfo_t
	if memory == 0 || unix.Sysinfo(&info) != nil {
		t.pass()
		return
	}
	limitMemory(&info, memory)
	if !t.waits() {
		t.cancelled()
		return
	}
	answer := unsafe.Slice((*byte)(unsafe.Pointer(&info)), unsafe.Sizeof(info))
	switch err := linux.WriteMemory(t.tid(), t.call().Args[0], answer, 0, nil); {
	case err == nil:
		t.answer(0, 0)
	case errors.Is(err, unix.EFAULT):
		t.answer(0, unix.EFAULT)
	default:
		t.pass()
	}
}

// limitMemory makes info tell of a container with so many bytes of memory. What
// is free is at most that; what the container uses of it is not known here.
func limitMemory(info *unix.Sysinfo_t, memory uint64) {
	unit := uint64(max(1, info.Unit))
	info.Totalram = min(memory, info.Totalram*unit)
	info.Freeram = min(info.Totalram, info.Freeram*unit)
	info.Sharedram, info.Bufferram, info.Totalswap, info.Freeswap, info.Totalhigh, info.Freehigh = 0, 0, 0, 0, 0, 0
	info.Unit = 1
}
