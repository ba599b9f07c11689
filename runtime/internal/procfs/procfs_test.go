package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/runtime/internal/linux"
)

// fakeProc is a proc file system in a directory.
type fakeProc struct {
	t *testing.T
	FS
}

func newFake(t *testing.T) fakeProc {
	return fakeProc{t, New(t.TempDir())}
}

func (f fakeProc) write(pid int, name, text string) {
	f.t.Helper()
	path := f.path(pid, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// add makes a process with resident pages and one thread unless children are
// given per thread.
func (f fakeProc) add(pid, parent int, state, mount string, pages int, children ...[]int) {
	f.t.Helper()
	threads := max(len(children), 1)
	f.write(pid, "stat", fmt.Sprintf(
		"%d (a (very) odd) name) %s %d 1 1 0 -1 4194560 10 20 1 2 100 50 30 20 20 0 %d 0 777 1000000 %d 18446744073709551615 0 0\n",
		pid, state, parent, threads, pages))
	for i := range threads {
		var text strings.Builder
		if i < len(children) {
			for _, c := range children[i] {
				fmt.Fprintf(&text, "%d ", c)
			}
		}
		f.write(pid, fmt.Sprintf("task/%d/children", pid+i*100000), text.String())
	}
	if err := os.MkdirAll(f.path(pid, "ns"), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink("mnt:["+mount+"]", f.path(pid, "ns/mnt")); err != nil {
		f.t.Fatal(err)
	}
}

// A pod with a shared PID namespace: the pause process has adopted an orphan
// of container b, and the shim one of container a.
func TestTree(t *testing.T) {
	f := newFake(t)
	f.add(10, 1, "S", "host", 100, []int{20, 30}, []int{40, 50, 60, 70}) // the shim, two threads
	f.add(20, 10, "S", "pause", 1, []int{21})
	f.add(21, 20, "S", "b", 5) // orphan of b
	f.add(30, 10, "S", "a", 10, []int{31, 32})
	f.add(31, 30, "S", "a", 10, []int{33})
	f.add(32, 30, "Z", "a", 0) // not reaped yet
	f.add(33, 31, "S", "nested", 10)
	f.add(40, 10, "S", "b", 20)
	f.add(50, 10, "S", "a", 7)     // started by exec
	f.add(60, 10, "S", "a", 8)     // orphan of a
	f.add(70, 10, "S", "host", 50) // runc, on its way
	roots := map[string]Root{
		"pause": {20, "mnt:[pause]"}, "a": {30, "mnt:[a]"}, "b": {40, "mnt:[b]"},
	}
	tree, err := f.Tree(10, roots)
	if err != nil {
		t.Fatal(err)
	}
	f.checkTree(tree)
	sum := Sum(tree["a"])
	if sum.Processes != 5 || sum.Threads != 5 || sum.Resident != 45*uint64(os.Getpagesize()) || sum.User != 5*1300*time.Millisecond || sum.MajorFaults != 15 {
		t.Errorf("sum %+v", sum)
	}
	if pids, err := f.InMountNamespaces(map[string]bool{"mnt:[a]": true, "mnt:[host]": false}); err != nil {
		t.Error(err)
	} else if slices.Sort(pids); !slices.Equal(pids, []int{30, 31, 32, 50, 60}) {
		t.Errorf("in namespace a: %v", pids)
	}

	// A kernel that does not list children gives the same.
	lists, err := filepath.Glob(filepath.Join(f.root, "*/task/*/children"))
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		if err := os.Remove(list); err != nil {
			t.Fatal(err)
		}
	}
	if tree, err = f.Tree(10, roots); err != nil {
		t.Fatal(err)
	}
	f.checkTree(tree)
}

func (f fakeProc) checkTree(tree map[string][]linux.Stat) {
	f.t.Helper()
	for id, want := range map[string][]int{"pause": {20}, "a": {30, 31, 33, 50, 60}, "b": {21, 40}, "": nil} {
		var got []int
		for _, s := range tree[id] {
			got = append(got, s.PID)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			f.t.Errorf("container %q has %v, want %v", id, got, want)
		}
	}
}

func TestMemory(t *testing.T) {
	f := newFake(t)
	f.write(1, "status", "Name:\tx\nVmPTE:\t 8 kB\nRssAnon:\t  100 kB\nRssFile:\t 50 kB\nRssShmem:\t  20 kB\nThreads:\t1\n")
	f.write(1, "smaps_rollup", "5581-7ffc ---p 00000000 00:00 0 [rollup]\nRss: 170 kB\nPss: 90 kB\nPss_Anon: 60 kB\nPss_File: 20 kB\nPss_Shmem: 10 kB\n")
	f.write(2, "status", "RssAnon:\t1 kB\nRssShmem:\tnonsense\n")
	if got, err := f.Memory(1); err != nil || got.Charged() != 128<<10 || got.File != 50<<10 {
		t.Errorf("memory %+v, %v", got, err)
	}
	if got, err := f.Proportional(1); err != nil || got.Charged() != 78<<10 {
		t.Errorf("proportional %+v, %v", got, err)
	}
	if _, err := f.Memory(2); err == nil {
		t.Error("nonsense: no error")
	}
	if got := TotalMemory([]linux.Stat{{PID: 1}, {PID: 3}}, f.Memory); got.Charged() != 128<<10 {
		t.Errorf("with one that has ended: %+v", got)
	}
}

func TestFilesInMemory(t *testing.T) {
	m := Memory{Anon: 10, Shmem: 5, File: 100, PageTables: 1}
	if got := m.WithFiles(3).Charged(); got != 16 {
		t.Errorf("files that are mapped: %d", got)
	}
	if got := m.WithFiles(20).Charged(); got != 31 {
		t.Errorf("files that are not: %d", got)
	}
	if got := TmpfsUse("/proc"); got != 0 {
		t.Errorf("/proc holds %d bytes of memory", got)
	}
}

// The kernel's description of this process can be parsed.
func TestOwnProcess(t *testing.T) {
	f := New("/proc")
	s, err := linux.ReadStat("/proc", os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if s.Parent != os.Getppid() || s.Resident == 0 || s.Threads == 0 {
		t.Errorf("%+v", s)
	}
	if m, err := f.Memory(os.Getpid()); err != nil || m.Anon == 0 || m.PageTables == 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if m, err := f.Proportional(os.Getpid()); err != nil || m.Anon == 0 {
		t.Errorf("%+v, %v", m, err)
	}
	if _, err := f.children(s); err != nil {
		t.Error(err)
	}
	all, err := f.all()
	if err != nil || !slices.Contains(all, os.Getpid()) {
		t.Errorf("all processes: %v, without %s", err, strconv.Itoa(os.Getpid()))
	}
}
