package pinning

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"
)

// rounds bounds how often the threads of a process are listed again, because
// one that was not yet bound may have started another.
const rounds = 8

// Bind binds all threads of a process to cpus. A process that has ended is no
// error.
func Bind(pid int, cpus cpuset.CPUSet) error {
	var set unix.CPUSet
	for _, cpu := range cpus.UnsortedList() {
		set.Set(cpu)
	}
	bound := map[string]bool{}
	for range rounds {
		threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list threads of process %d: %w", pid, err)
		}
		fresh := false
		for _, thread := range threads {
			if bound[thread.Name()] {
				continue
			}
			bound[thread.Name()], fresh = true, true
			tid, err := strconv.Atoi(thread.Name())
			if err != nil {
				return fmt.Errorf("list threads of process %d: %w", pid, err)
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("bind thread %d of process %d to CPUs %s: %w", tid, pid, cpus, err)
			}
		}
		if !fresh {
			return nil
		}
	}
	return nil
}

// Own returns the CPUs that this process may use.
func Own() (cpuset.CPUSet, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return cpuset.New(), fmt.Errorf("get own CPUs: %w", err)
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpuset.New(cpus...), nil
}
