package linux

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestLimitMemory(t *testing.T) {
	info := unix.Sysinfo_t{Totalram: 1000, Freeram: 100, Totalswap: 7, Unit: 4096}
	limitMemory(&info, 1<<20)
	if info.Totalram != 1<<20 || info.Freeram != 100*4096 || info.Totalswap != 0 || info.Unit != 1 {
		t.Errorf("below the machine's memory: %+v", info)
	}
	info = unix.Sysinfo_t{Totalram: 1000, Freeram: 100, Unit: 1}
	limitMemory(&info, 1<<20)
	if info.Totalram != 1000 {
		t.Errorf("above the machine's memory: %+v", info)
	}
}
