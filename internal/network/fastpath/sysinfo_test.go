package fastpath

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// labMemory is the memory of a container of the lab, in bytes.
const labMemory = 64 << 20

func TestSysinfoReportsContainer(t *testing.T) {
	_, limited, other := pair(t, labConfig{})
	limited.memory = true
	if got, want := limited.run("memory"), fmt.Sprint(labMemory, " true true"); got != want {
		t.Errorf("a container with a limit: %s, want %s", got, want)
	}
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		t.Fatal(err)
	}
	if got, want := other.run("memory"), fmt.Sprint(machine.Totalram*uint64(machine.Unit), " true true"); got != want {
		t.Errorf("a container that nothing is known of: %s, want %s", got, want)
	}
}

// memory prints the result of sysinfo(2): the memory, whether no more than that is
// free, and whether the machine has been started before.
func memory([]string) error {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return err
	}
	if err := unix.Sysinfo(nil); err != unix.EFAULT {
		return fmt.Errorf("sysinfo without a place: %w, not EFAULT", err)
	}
	fmt.Println(info.Totalram*uint64(info.Unit), info.Freeram <= info.Totalram, info.Uptime > 0)
	return nil
}
