package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The groups that a run makes below the delegated one:
//
//	DELEGATED               controllers enabled; its processes moved to berth-host
//	├─ berth-host           supervisor, net role, janitor, the user's command,
//	│                       and other processes (a shell)
//	└─ berth-run-ID         root of the sandbox's cgroup namespace, no process
//	    ├─ berth            init and the roles, limited only by DELEGATED
//	    └─ kubepods/...     groups of the kubelet
//
// A group that enables controllers for its children can have no processes
// (cgroups(7), "no internal processes"), so all processes of the delegated group
// move to berth-host. The last run to end moves them back.
const (
	hostGroup  = "berth-host"
	runPrefix  = "berth-run-"
	rolesGroup = "berth"
)

// handedOn lists the controllers that pods use. The others stay disabled, because
// each has a cost in every group.
var handedOn = [...]string{"cpu", "cpuset", "memory", "pids", "hugetlb"}

// groupDeadline bounds the wait for a group to become empty and removable: the
// kernel needs a moment after the last process has been killed.
const groupDeadline = 5 * time.Second

// Cgroup is the control group of a run, below one that was delegated to the
// user.
type Cgroup struct {
	// Path is the group's directory on the host.
	Path string
	// lock is shared by all processes that need the group. A group without a
	// lock is a leftover of a killed run.
	lock *os.File
}

// MakeCgroup makes the group of a run below the delegated one. It first removes
// the groups of killed runs, and moves existing processes to a separate group.
func MakeCgroup(delegated, run string) (*Cgroup, error) {
	parent := delegatedGroup(delegated)
	unlock, err := lockGroup(parent, unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	defer unlock.Close()
	for _, path := range staleGroups(parent) {
		if err := removeGroup(path); err != nil {
			return nil, err
		}
	}
	c := &Cgroup{Path: filepath.Join(parent, runPrefix+run)}
	if err := c.make(parent); err != nil {
		err = fmt.Errorf("use the delegated control group %s: %w", parent, err)
		return nil, errors.Join(err, c.closeLock(), removeGroup(c.Path), restoreGroup(parent))
	}
	return c, nil
}

func (c *Cgroup) make(parent string) (err error) {
	host := filepath.Join(parent, hostGroup)
	if err := os.Mkdir(host, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := moveProcesses(parent, host); err != nil {
		return err
	}
	if err := handOn(parent); err != nil {
		return err
	}
	if err := os.Mkdir(c.Path, 0o755); err != nil {
		return err
	}
	c.lock, err = lockGroup(c.Path, unix.LOCK_SH)
	return err
}

func (c *Cgroup) closeLock() error {
	if c.lock == nil {
		return nil
	}
	lock := c.lock
	c.lock = nil
	return lock.Close()
}

// Close removes the run's group with its subgroups and kills their processes. The
// last run also moves the other processes back into the delegated group. Close can
// be called twice.
func (c *Cgroup) Close() error {
	return errors.Join(c.closeLock(), RemoveCgroup(c.Path))
}

// RemoveCgroup works like Close, but for a process that did not make the group. A
// group that does not exist is no error.
func RemoveCgroup(path string) error {
	parent := filepath.Dir(path)
	if !filepath.IsAbs(path) || !strings.HasPrefix(filepath.Base(path), runPrefix) {
		return fmt.Errorf("remove control group %q: not the group of a run", path)
	}
	if err := removeGroup(path); err != nil {
		return err
	}
	unlock, err := lockGroup(parent, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the delegation itself has ended
	}
	if err != nil {
		return err
	}
	defer unlock.Close()
	return restoreGroup(parent)
}

// delegatedGroup returns the parent of the groups that runs make: this process's
// group, or the parent of that if an earlier run moved this process aside.
func delegatedGroup(path string) string {
	if filepath.Base(path) == hostGroup {
		return filepath.Dir(path)
	}
	return path
}

// restoreGroup undoes what the first run did to the delegated group, unless
// another run still uses it. The caller holds the lock of parent.
func restoreGroup(parent string) error {
	runs, err := filepath.Glob(filepath.Join(parent, runPrefix+"*"))
	if err != nil || len(runs) > 0 {
		return err
	}
	host := filepath.Join(parent, hostGroup)
	if _, err := os.Stat(host); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// One write each: a write with several controllers fails as a whole.
	for _, controller := range readWords(parent, "cgroup.subtree_control") {
		if err := writeGroup(parent, "cgroup.subtree_control", "-"+controller); err != nil {
			return fmt.Errorf("disable the controller %s: %w", controller, err)
		}
	}
	if err := moveProcesses(host, parent); err != nil {
		return err
	}
	return removeGroup(host)
}

// handOn enables the controllers that pods use for the groups below a group.
func handOn(path string) error {
	available := readWords(path, "cgroup.controllers")
	for _, controller := range handedOn {
		if !slices.Contains(available, controller) {
			continue
		}
		if err := writeGroup(path, "cgroup.subtree_control", "+"+controller); err != nil {
			return fmt.Errorf("enable the controller %s: %w", controller, err)
		}
	}
	return nil
}

// settleGroups moves all processes out of the run's group, so that it can enable
// controllers: the janitor to berth-host, and init to the roles' group. Both started
// in the run's group to make it the root of the cgroup namespace. The process ids
// belong to the caller's PID namespace.
func settleGroups(path string, janitor, init int) error {
	if path == "" {
		return nil
	}
	roles := filepath.Join(path, rolesGroup)
	if err := os.Mkdir(roles, 0o755); err != nil {
		return fmt.Errorf("make the roles' control group: %w", err)
	}
	if err := moveProcess(filepath.Join(filepath.Dir(path), hostGroup), janitor); err != nil {
		return err
	}
	if err := moveProcess(roles, init); err != nil {
		return err
	}
	return handOn(path)
}

// leaveGroup moves this process out of the run's group.
func leaveGroup(path string) error {
	if path == "" {
		return nil
	}
	return moveProcess(filepath.Join(filepath.Dir(path), hostGroup), os.Getpid())
}

// holdGroup locks the run's group until this process ends, so that other runs do not
// remove the group as a leftover. It leaves the descriptor open.
func holdGroup(path string) error {
	if path == "" {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		err = unix.Flock(fd, unix.LOCK_SH)
	}
	if err != nil {
		return fmt.Errorf("lock control group %s: %w", path, err)
	}
	return nil
}

// moveRounds bounds how often moveProcesses lists the processes of a group. It must
// list them again because a process can fork before it is moved.
const moveRounds = 100

// moveProcesses moves all processes of one group to another.
func moveProcesses(from, to string) error {
	for range moveRounds {
		pids := readWords(from, "cgroup.procs")
		if len(pids) == 0 {
			return nil
		}
		for _, text := range pids {
			pid, err := strconv.Atoi(text)
			if err != nil || pid == 0 {
				return fmt.Errorf("move the processes of control group %s: one is outside of this PID namespace", from)
			}
			if err := moveProcess(to, pid); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("move the processes of control group %s: new ones keep appearing", from)
}

// moveProcess moves a process to a group. One that has ended is no error.
func moveProcess(group string, pid int) error {
	err := writeGroup(group, "cgroup.procs", strconv.Itoa(pid))
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("move process %d to control group %s: %w", pid, group, err)
	}
	return nil
}

// staleGroups returns the groups of runs below parent that nobody locks.
func staleGroups(parent string) (stale []string) {
	runs, _ := filepath.Glob(filepath.Join(parent, runPrefix+"*"))
	for _, path := range runs {
		lock, err := lockGroup(path, unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue
		}
		lock.Close()
		stale = append(stale, path)
	}
	return stale
}

// lockGroup locks the directory of a group with flock, because a cgroup file system
// cannot hold a lock file. The lock ends when the returned file is closed.
func lockGroup(path string, how int) (*os.File, error) {
	directory, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(directory.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock control group %s: %w", path, err), directory.Close())
	}
	return directory, nil
}

// removeGroup removes a group with all groups below it, and kills the processes
// in them.
func removeGroup(path string) error {
	deadline := time.Now().Add(groupDeadline)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := removeGroups(path)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("remove control group %s: %w", path, err)
		}
		killGroup(path)
		time.Sleep(pause)
	}
}

// removeGroups removes empty groups, leaves first. Rmdir ignores a group's files,
// but fails for a group that has subgroups.
func removeGroups(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			_ = removeGroups(filepath.Join(path, entry.Name()))
		}
	}
	return unix.Rmdir(path)
}

// killGroup kills all processes in and below a group: with cgroup.kill since Linux
// 5.14, one by one on older kernels.
func killGroup(path string) {
	if writeGroup(path, "cgroup.kill", "1") == nil {
		return
	}
	_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil
		}
		for _, text := range readWords(path, "cgroup.procs") {
			if pid, err := strconv.Atoi(text); err == nil && pid > 1 && pid != os.Getpid() {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return nil
	})
}

// readWords returns the words in a file of a group, or nil if it is unreadable.
func readWords(group, file string) []string {
	content, err := os.ReadFile(filepath.Join(group, file))
	if err != nil {
		return nil
	}
	return strings.Fields(string(bytes.TrimSpace(content)))
}

// writeGroup writes to an existing file of a group.
func writeGroup(group, file, text string) error {
	f, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
