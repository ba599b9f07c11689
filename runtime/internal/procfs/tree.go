package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/linux"
)

// Root names the first process of a container and the container's mount
// namespace. Together they identify every process of the container:
//
//   - descendants of the first process, however they changed namespaces;
//   - processes started by exec, which are children of the shim;
//   - orphans, which become children of the shim or of the first process of the
//     PID namespace. In a pod with shareProcessNamespace, that process belongs to
//     another container. The mount namespace shows whose they were.
type Root struct {
	PID            int
	MountNamespace string
}

// Tree returns the live processes below a shim by container, with the keys of roots. It
// omits a process that belongs to none of them.
func (f FS) Tree(shim int, roots map[string]Root) (map[string][]linux.Stat, error) {
	first := make(map[int]string, len(roots))
	mounts := make(map[string]string, len(roots))
	for id, r := range roots {
		first[r.PID] = id
		mounts[r.MountNamespace] = id
	}
	top, err := linux.ReadStat(f.root, shim)
	if err != nil {
		return nil, err
	}
	childrenOf := f.children
	if _, err := f.childrenOf(shim, strconv.Itoa(shim)); errors.Is(err, fs.ErrNotExist) {
		// A kernel without CONFIG_PROC_CHILDREN: ask every process instead.
		if childrenOf, err = f.byParent(); err != nil {
			return nil, err
		}
	}
	found := make(map[string][]linux.Stat, len(roots))
	var walk func(parent linux.Stat, owner string, adoptive bool)
	walk = func(parent linux.Stat, owner string, adoptive bool) {
		children, err := childrenOf(parent)
		if err != nil {
			return // the parent has just ended
		}
		for _, pid := range children {
			s, err := linux.ReadStat(f.root, pid)
			if err != nil || s.Ended() {
				continue
			}
			mine := owner
			id, isFirst := first[pid]
			switch {
			case isFirst:
				mine = id
			case adoptive:
				if ns, err := f.MountNamespace(pid); err == nil {
					if id, ok := mounts[ns]; ok {
						mine = id
					}
				}
			}
			if mine != "" {
				found[mine] = append(found[mine], s)
			}
			walk(s, mine, isFirst)
		}
	}
	walk(top, "", true)
	return found, nil
}

// byParent reads the state of all processes once, and returns a function that works like
// children.
func (f FS) byParent() (func(linux.Stat) ([]int, error), error) {
	all, err := f.all()
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, pid := range all {
		if s, err := linux.ReadStat(f.root, pid); err == nil {
			children[s.Parent] = append(children[s.Parent], pid)
		}
	}
	return func(parent linux.Stat) ([]int, error) { return children[parent.PID], nil }, nil
}

// InMountNamespaces returns every visible process in one of the mount
// namespaces. It reads all of /proc and is for the end of a pod only.
func (f FS) InMountNamespaces(wanted map[string]bool) ([]int, error) {
	all, err := f.all()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, pid := range all {
		// A process that has ended has no namespace any more.
		if ns, err := f.MountNamespace(pid); err == nil && wanted[ns] {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// ProcessorTime returns the CPU time that a process and its threads, but not its children,
// have used. It takes one system call, opens no file, and is exact to the nanosecond.
func ProcessorTime(pid int) (time.Duration, error) {
	// The clock of a process, clock_getcpuclockid(3): CPUCLOCK_SCHED is 2.
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &t); err != nil {
		return 0, fmt.Errorf("read processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// Usage is the total usage of a container's processes.
type Usage struct {
	Processes, Threads       int
	User, System             time.Duration
	MinorFaults, MajorFaults uint64
	// Resident is the sum of linux.Stat.Resident in bytes: an upper bound of Memory.
	Resident uint64
}

// Sum adds up the fields of states.
func Sum(processes []linux.Stat) (u Usage) {
	for _, s := range processes {
		u.Processes++
		u.Threads += s.Threads
		u.User += s.User + s.ChildUser
		u.System += s.System + s.ChildSystem
		u.MinorFaults += s.MinorFaults
		u.MajorFaults += s.MajorFaults
		u.Resident += s.Resident
	}
	return u
}

// TotalMemory adds up the memory of processes, which read returns for each of them.
// Processes that end meanwhile count as 0.
func TotalMemory(processes []linux.Stat, read func(pid int) (Memory, error)) (total Memory) {
	for _, s := range processes {
		if m, err := read(s.PID); err == nil {
			total = total.plus(m)
		}
	}
	return total
}
