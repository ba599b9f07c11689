package linux

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// BecomeSubreaper makes orphans among this process's descendants its children,
// instead of the init process's (Linux 3.4). It is not inherited.
func BecomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// Parent returns the parent of a process, or 0 if the parent is in an outer PID namespace.
// It returns false if the process has ended or is hidden.
func Parent(pid int) (int, bool) {
	s, err := ReadStat("/proc", pid)
	return s.Parent, err == nil
}

// Children returns the children of a process. Zombies are among them.
func Children(pid int) ([]int, error) {
	parents, err := Parents()
	if err != nil {
		return nil, err
	}
	var all []int
	for child, parent := range parents {
		if parent == pid {
			all = append(all, child)
		}
	}
	return all, nil
}

// Siblings returns the other children of the parent of a process.
func Siblings(pid int) ([]int, error) {
	parent, known := Parent(pid)
	if !known {
		return nil, nil
	}
	all, err := Children(parent)
	return slices.DeleteFunc(all, func(child int) bool { return child == pid }), err
}

// Descendants returns the children of a process, and all their descendants.
func Descendants(pid int) ([]int, error) {
	parents, err := Parents()
	if err != nil {
		return nil, err
	}
	var all []int
	for child := range parents {
		for ancestor, steps := parents[child], 0; ancestor > 0 && steps < len(parents); ancestor, steps = parents[ancestor], steps+1 {
			if ancestor == pid {
				all = append(all, child)
				break
			}
		}
	}
	return all, nil
}

// Parents returns the parent of each visible process. It reads all of /proc, because not
// every kernel has /proc/PID/task/TID/children.
func Parents() (map[int]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found := map[int]int{}
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if parent, known := Parent(pid); known {
			found[pid] = parent
		}
	}
	return found, nil
}
