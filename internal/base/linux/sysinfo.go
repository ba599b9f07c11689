package linux

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LimitedSysinfo returns struct sysinfo as sysinfo(2) would fill it on a machine
// with so many bytes of memory. The memory that a container uses is not subtracted
// from the free memory.
func LimitedSysinfo(memory uint64) ([]byte, error) {
	info := new(unix.Sysinfo_t)
	if err := unix.Sysinfo(info); err != nil {
		return nil, fmt.Errorf("read the machine's memory: %w", err)
	}
	limitMemory(info, memory)
	return unsafe.Slice((*byte)(unsafe.Pointer(info)), unsafe.Sizeof(*info)), nil
}

func limitMemory(info *unix.Sysinfo_t, memory uint64) {
	unit := uint64(max(1, info.Unit))
	info.Totalram = min(memory, info.Totalram*unit)
	info.Freeram = min(info.Totalram, info.Freeram*unit)
	info.Sharedram, info.Bufferram, info.Totalswap, info.Freeswap, info.Totalhigh, info.Freehigh = 0, 0, 0, 0, 0, 0
	info.Unit = 1
}
