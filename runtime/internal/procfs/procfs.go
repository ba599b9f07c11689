// Package procfs measures the usage of containers' processes from /proc, where
// no cgroup does. It knows processes and containers, not pods. It changes
// nothing, except that it sends signals on request.
package procfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// FS is a proc file system, usually at /proc.
type FS struct {
	root     string
	pageSize uint64
}

// New returns the proc file system at root.
func New(root string) FS { return FS{root: root, pageSize: uint64(os.Getpagesize())} }

// clockTick is the unit of the times in stat: USER_HZ, 100 on every
// architecture that Linux and Go share.
const clockTick = 10 * time.Millisecond

// Stat is one line of /proc/PID/stat.
type Stat struct {
	PID, Parent int
	Threads     int
	// Start in clock ticks after boot: with PID it names a process for good.
	Start uint64
	// User and System include the children that the process has reaped.
	User, System time.Duration
	// Resident is an upper bound in bytes of what the process holds: it
	// includes mapped files and counts shared pages in full.
	Resident                 uint64
	MinorFaults, MajorFaults uint64
	// Zombie is true for a process that has ended and not been reaped.
	Zombie bool
}

func (f FS) path(pid int, name string) string {
	return filepath.Join(f.root, strconv.Itoa(pid), name)
}

// Stat reads the state of a process.
func (f FS) Stat(pid int) (Stat, error) {
	text, err := os.ReadFile(f.path(pid, "stat"))
	if err != nil {
		return Stat{}, fmt.Errorf("read state of process %d: %w", pid, err)
	}
	s, err := f.parseStat(string(text))
	if err != nil {
		return Stat{}, fmt.Errorf("parse state of process %d: %w", pid, err)
	}
	return s, nil
}

var errShort = errors.New("too few fields")

func (f FS) parseStat(text string) (Stat, error) {
	// The name, in brackets, may itself hold brackets and blanks.
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return Stat{}, errShort
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text[:open]))
	if err != nil {
		return Stat{}, err
	}
	fields := strings.Fields(text[end+1:])
	if len(fields) < 22 {
		return Stat{}, errShort
	}
	var failed error
	number := func(i int) uint64 { // i as in proc_pid_stat(5), which counts from 1
		v, err := strconv.ParseUint(fields[i-3], 10, 64)
		if err != nil && failed == nil {
			failed = fmt.Errorf("field %d: %w", i, err)
		}
		return v
	}
	s := Stat{
		PID:         pid,
		Parent:      int(number(4)),
		MinorFaults: number(10) + number(11),
		MajorFaults: number(12) + number(13),
		User:        time.Duration(number(14)+number(16)) * clockTick,
		System:      time.Duration(number(15)+number(17)) * clockTick,
		Threads:     int(number(20)),
		Start:       number(22),
		Resident:    number(24) * f.pageSize,
		Zombie:      fields[0] == "Z" || fields[0] == "X",
	}
	return s, failed
}

// children returns the children of a process.
func (f FS) children(s Stat) ([]int, error) {
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

// MountNamespace returns the identity of a process's mount namespace.
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
