// Package procfs measures the usage of containers' processes from /proc, where
// no cgroup does. It knows processes and containers, not pods. It only reads.
package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"berth.dev/berth/runtime/internal/linux"
)

// FS is a proc file system, usually at /proc.
type FS struct{ root string }

// New returns the proc file system at root.
func New(root string) FS { return FS{root} }

func (f FS) path(pid int, name string) string {
	return filepath.Join(f.root, strconv.Itoa(pid), name)
}

// children returns the children of a process.
func (f FS) children(s linux.Stat) ([]int, error) {
	if s.Threads <= 1 {
		return f.childrenOf(s.PID, strconv.Itoa(s.PID))
	}
	// Each thread has the children that it started itself.
	tasks, err := os.ReadDir(f.path(s.PID, "task"))
	if err != nil {
		return nil, fmt.Errorf("list threads of process %d: %w", s.PID, err)
	}
	var all []int
	for _, t := range tasks {
		pids, err := f.childrenOf(s.PID, t.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	return all, nil
}

func (f FS) childrenOf(pid int, thread string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(f.path(pid, "task"), thread, "children"))
	if err != nil {
		return nil, fmt.Errorf("list children of process %d: %w", pid, err)
	}
	fields := strings.Fields(string(text))
	pids := make([]int, 0, len(fields))
	for _, v := range fields {
		child, err := strconv.Atoi(v)
		if err != nil {
			return nil, fmt.Errorf("parse children of process %d: %w", pid, err)
		}
		pids = append(pids, child)
	}
	return pids, nil
}

// MountNamespace returns the identity of a process's mount namespace, such as
// mnt:[4026531841].
func (f FS) MountNamespace(pid int) (string, error) {
	link, err := os.Readlink(f.path(pid, "ns/mnt"))
	if err != nil {
		return "", fmt.Errorf("read mount namespace of process %d: %w", pid, err)
	}
	return link, nil
}

// all returns every process that is visible.
func (f FS) all() ([]int, error) {
	dir, err := os.Open(f.root)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
