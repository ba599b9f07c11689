package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakeProc is a folder with files as in /proc.
type fakeProc struct {
	*testing.T
	dir string
}

func (p fakeProc) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p fakeProc) process(pid, parent int, program string, watchers int) {
	dir := filepath.Join(p.dir, fmt.Sprint(pid))
	p.must(os.MkdirAll(filepath.Join(dir, "fd"), 0o700))
	p.must(os.WriteFile(filepath.Join(dir, "stat"), fmt.Appendf(nil, "%d (a) b) (c) S %d 1 1", pid, parent), 0o600))
	p.must(os.Symlink(program, filepath.Join(dir, "exe")))
	p.must(os.Symlink("/dev/null", filepath.Join(dir, "fd/0")))
	for i := range watchers {
		p.must(os.Symlink("anon_inode:inotify", filepath.Join(dir, "fd", fmt.Sprint(i+1))))
	}
}

// shim adds a shim of a program. It returns the path of its config.json.
func (p fakeProc) shim(pid, parent int, program, pod string, watchers int) string {
	p.process(pid, parent, program, watchers)
	bundle := filepath.Join(p.dir, fmt.Sprint(pid), "cwd")
	p.must(os.MkdirAll(bundle, 0o700))
	path := filepath.Join(bundle, "config.json")
	p.must(os.WriteFile(path, fmt.Appendf(nil,
		`{"annotations":{"io.kubernetes.cri.sandbox-namespace":"default","io.kubernetes.cri.sandbox-name":"%s"}}`, pod), 0o600))
	return path
}

// memory sets the number of pages that a process shares with no file.
func (p fakeProc) memory(pid, pages int) {
	p.must(os.WriteFile(filepath.Join(p.dir, fmt.Sprint(pid), "statm"), fmt.Appendf(nil, "%d %d 100 1 0 1 0\n", 9*pages, pages+100), 0o600))
}

// kills sets the number of processes that the kernel has killed for lack of memory.
func (p fakeProc) kills(count int) {
	p.must(os.WriteFile(filepath.Join(p.dir, "vmstat"), fmt.Appendf(nil, "pgfree 7\noom_kill %d\noom_killer 9\n", count), 0o600))
}

const installedShim = "/srv/libexec/berth/containerd-shim-berth-v2"

// The pod with most instances of inotify is named, whichever of its processes has them, and
// whatever they call themselves. Programs outside of pods are not.
func TestPodWithMostWatchersIsNamed(t *testing.T) {
	proc := fakeProc{t, t.TempDir()}
	proc.must(os.WriteFile(filepath.Join(proc.dir, "uptime"), nil, 0o600))
	proc.process(1, 0, "/sbin/init", 0)
	proc.process(2, 1, "editor", 100)
	if pod, instances := mostWatchers(proc.dir); instances != 0 {
		t.Errorf("without pods: pod %q has %d", pod, instances)
	}
	proc.shim(10, 1, installedShim, "other", 1)
	proc.process(11, 10, "sleep", 7)
	proc.shim(20, 1, installedShim+" (deleted)", "hostile", 1)
	proc.process(21, 20, "sh", 4)
	proc.process(22, 21, "greedy", 3)
	proc.shim(23, 21, installedShim, "other", 0)
	proc.process(24, 23, "greedy", 2)
	proc.process(25, 99, "orphan", 50) // its parent has just ended
	if pod, instances := mostWatchers(proc.dir); pod != "default/hostile" || instances != 9 {
		t.Errorf("pod %q has %d, want default/hostile with 9", pod, instances)
	}
}

// Whatever a bundle holds, the search ends, and no text that a terminal would interpret is
// printed.
func TestBundleThatIsNoneNamesNoPod(t *testing.T) {
	proc := fakeProc{t, t.TempDir()}
	replace := func(pid int, with func(path string) error) {
		path := proc.shim(pid, 1, installedShim, "hostile", 0)
		proc.must(os.Remove(path))
		proc.must(with(path))
		proc.process(pid+1, pid, "greedy", 9)
	}
	proc.process(1, 0, "/sbin/init", 0)
	replace(10, func(path string) error { return unix.Mkfifo(path, 0o600) })
	replace(20, func(path string) error { return os.Symlink("/dev/zero", path) })
	replace(30, func(path string) error {
		return os.WriteFile(path, []byte(strings.Repeat(" ", maxBundle)+`{"annotations":{"io.kubernetes.cri.sandbox-namespace":"default","io.kubernetes.cri.sandbox-name":"large"}}`), 0o600)
	})
	proc.shim(40, 1, installedShim, `hostile\u001b[2J`, 9)
	proc.process(41, 40, "greedy", 9)
	proc.shim(50, 1, "/tmp/containerd-shim-mine", "other", 0)
	proc.process(51, 50, "greedy", 9)
	if pod, instances := mostWatchers(proc.dir); instances != 0 {
		t.Errorf("pod %q has %d", pod, instances)
	}
}
