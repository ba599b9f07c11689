package testutil

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ControlGroup makes a version 2 control group below that of the test and
// returns its directory. It is gone, with the groups below it, when the test
// ends; one that still holds processes then fails the test.
func ControlGroup(t testing.TB) string {
	t.Helper()
	Require(t, Cgroup2)
	path, err := newControlGroup()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(path); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	return path
}

func probeCgroup2() error {
	path, err := newControlGroup()
	if err != nil {
		return err
	}
	return os.Remove(path)
}

func newControlGroup() (string, error) {
	content, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", err
	}
	lines := strings.Split(string(content), "\n")
	own := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, "0::/") })
	if own < 0 {
		return "", errors.New("no cgroup version 2 hierarchy")
	}
	for _, mount := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		at := filepath.Join(mount, strings.TrimPrefix(lines[own], "0::"))
		if _, err := os.Stat(filepath.Join(at, "cgroup.procs")); err == nil {
			return os.MkdirTemp(at, "berth-test-")
		}
	}
	return "", errors.New("no cgroup version 2 hierarchy is mounted")
}
