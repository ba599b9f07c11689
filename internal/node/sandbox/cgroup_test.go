package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

func TestDelegatedGroup(t *testing.T) {
	for path, want := range map[string]string{
		"/sys/fs/cgroup/a/run.scope":            "/sys/fs/cgroup/a/run.scope",
		"/sys/fs/cgroup/a/run.scope/berth-host": "/sys/fs/cgroup/a/run.scope",
	} {
		if got := delegatedGroup(path); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

func TestRemoveCgroupTakesNothingElse(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"", "relative/" + runPrefix + "1", dir, filepath.Join(dir, hostGroup)} {
		if err := RemoveCgroup(path); err == nil {
			t.Errorf("%q: no error", path)
		}
	}
	if err := RemoveCgroup(filepath.Join(dir, runPrefix+"gone")); err != nil {
		t.Error(err)
	}
	if err := RemoveCgroup(filepath.Join(dir, "gone", runPrefix+"gone")); err != nil {
		t.Error(err)
	}
}

func TestGroupInUseIsNoLeftover(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, runPrefix+"1")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := lockGroup(path, unix.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	if stale := staleGroups(dir); len(stale) > 0 {
		t.Errorf("in use, but stale: %q", stale)
	}
	lock.Close()
	if stale := staleGroups(dir); len(stale) != 1 || stale[0] != path {
		t.Errorf("got %q", stale)
	}
}

func TestForeignProcessIsNotMoved(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	for _, dir := range []string{from, to} {
		// The kernel shows 0 for a process of an outer PID namespace; writing it
		// would move the writer.
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := moveProcesses(from, to); err == nil || !strings.Contains(err.Error(), "PID namespace") {
		t.Errorf("got %v", err)
	}
}

// TestTwoRunsHaveSeparateCgroups follows an unrelated process in a delegated group, such as
// a shell, while two runs use the group.
func TestTwoRunsHaveSeparateCgroups(t *testing.T) {
	delegated := testutil.ControlGroup(t)
	unrelated := startIn(t, delegated)

	one, err := MakeCgroup(delegated, "one")
	if err != nil {
		t.Fatal(err)
	}
	expectGroup(t, unrelated, filepath.Join(delegated, hostGroup))
	// The unrelated process, which was moved, starts the second run.
	two, err := MakeCgroup(filepath.Join(delegated, hostGroup), "two")
	if err != nil {
		t.Fatal(errors.Join(err, one.Close()))
	}
	if filepath.Dir(one.Path) != delegated || filepath.Dir(two.Path) != delegated {
		t.Errorf("made %s and %s", one.Path, two.Path)
	}

	janitor, init := startIn(t, one.Path), startIn(t, one.Path)
	if err := settleGroups(one.Path, janitor.Process.Pid, init.Process.Pid); err != nil {
		t.Error(err)
	}
	expectGroup(t, janitor, filepath.Join(delegated, hostGroup))
	expectGroup(t, init, filepath.Join(one.Path, rolesGroup))
	if err := os.MkdirAll(filepath.Join(one.Path, "kubepods", "burstable", "pod"), 0o755); err != nil {
		t.Error(err)
	}

	if err := one.Close(); err != nil {
		t.Error(err)
	}
	if err := init.Wait(); err == nil {
		t.Error("what was in the group of the run has outlived it")
	}
	expectGone(t, one.Path)
	expectGroup(t, unrelated, filepath.Join(delegated, hostGroup))
	if err := errors.Join(two.Close(), two.Close()); err != nil {
		t.Error(err)
	}
	expectGone(t, two.Path)
	expectGone(t, filepath.Join(delegated, hostGroup))
	expectGroup(t, unrelated, delegated)
	expectGroup(t, janitor, delegated)
}

func TestNextRunRemovesLeftoversOfACrash(t *testing.T) {
	delegated := testutil.ControlGroup(t)
	crashed, err := MakeCgroup(delegated, "crashed")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(crashed.Path, "kubepods", "pod"), 0o755); err != nil {
		t.Error(err)
	}
	crashed.lock.Close() // the kernel does this for a process that is killed
	next, err := MakeCgroup(delegated, "next")
	if err != nil {
		t.Fatal(err)
	}
	expectGone(t, crashed.Path)
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	expectGone(t, filepath.Join(delegated, hostGroup))
}

// startIn starts a process that waits in a group; it ends before the group has
// to be removed.
func startIn(t *testing.T, group string) *exec.Cmd {
	t.Helper()
	command := exec.Command("cat")
	input, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		_ = command.Wait()
	})
	if err := moveProcess(group, command.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return command
}

func expectGroup(t *testing.T, process *exec.Cmd, group string) {
	t.Helper()
	for _, pid := range readWords(group, "cgroup.procs") {
		if pid == strconv.Itoa(process.Process.Pid) {
			return
		}
	}
	t.Errorf("process %d is not in %s", process.Process.Pid, group)
}

func expectGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is left (%v)", path, err)
	}
}
