package stories

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// leftoverDeadline bounds the wait for processes that are about to end: a story
// may end with a kill -9, after which the janitor still works for a moment.
const leftoverDeadline = 10 * time.Second

// state lists what the user has on the host.
type state struct {
	processes, files, mounts []string
}

// snapshot looks at processes (including processes in user namespaces of the
// user, since their ids are subordinate), at the places where runs keep files,
// and at the mounts of the host's own namespace.
func snapshot() (state, error) {
	var s state
	var err error
	if s.processes, err = processes(); err != nil {
		return state{}, err
	}
	for _, dir := range []string{"/tmp", "/var/tmp", "/dev/shm", "/run", os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR")} {
		found, err := filepath.Glob(filepath.Join(dir, "*berth*"))
		if err != nil {
			return state{}, err
		}
		for _, path := range found {
			if owned(path) {
				s.files = append(s.files, path)
			}
		}
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return state{}, err
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		s.mounts = append(s.mounts, lines.Text())
	}
	return s, nil
}

// compare reports what is there now and was not before.
func (s state) compare() error {
	deadline := time.Now().Add(leftoverDeadline)
	for {
		now, err := snapshot()
		if err != nil {
			return err
		}
		err = errors.Join(
			added("processes", s.processes, now.processes),
			added("files", s.files, now.files),
			added("mounts", s.mounts, now.mounts),
		)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		<-time.After(50 * time.Millisecond)
	}
}

func added(what string, before, now []string) error {
	var left []string
	for _, item := range now {
		if !slices.Contains(before, item) {
			left = append(left, item)
		}
	}
	if len(left) == 0 {
		return nil
	}
	return fmt.Errorf("%s left behind:\n  %s", what, strings.Join(left, "\n  "))
}

func owned(path string) bool {
	info, err := os.Lstat(path)
	if err != nil {
		return false
	}
	return int(info.Sys().(*syscall.Stat_t).Uid) == os.Getuid()
}

// processes lists the processes of this user and of subordinate ids, by id and name.
func processes() ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []string
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			continue
		}
		uid := int(info.Sys().(*syscall.Stat_t).Uid)
		name, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm"))
		if err != nil || uid != os.Getuid() && uid < firstSubordinateID {
			continue
		}
		all = append(all, fmt.Sprintf("%d %s", pid, strings.TrimSpace(string(name))))
	}
	return all, nil
}

// firstSubordinateID is the first subordinate id that distributions assign.
const firstSubordinateID = 100000

func hasSubordinateIDs() bool {
	content, err := os.ReadFile("/etc/subuid")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(content)) {
		owner, _, _ := strings.Cut(line, ":")
		if owner == os.Getenv("USER") || owner == strconv.Itoa(os.Getuid()) {
			return true
		}
	}
	return false
}
