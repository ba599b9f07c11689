package supervisor

import (
	"fmt"
	"io/fs"
	"testing"
	"testing/fstest"
)

// The pod with most instances of inotify is named, whichever of its processes has them, and
// whatever they call themselves. Programs outside of pods are not.
func TestPodWithMostWatchersIsNamed(t *testing.T) {
	proc := fstest.MapFS{}
	process := func(pid, parent int, program string, watchers int) {
		dir := fmt.Sprint(pid)
		proc[dir+"/stat"] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d (a) b) (c) S %d 1 1", pid, parent)}
		proc[dir+"/cmdline"] = &fstest.MapFile{Data: []byte(program + "\x00-id\x00x\x00")}
		proc[dir+"/fd/0"] = &fstest.MapFile{Data: []byte("/dev/null"), Mode: fs.ModeSymlink}
		for i := range watchers {
			proc[fmt.Sprintf("%s/fd/%d", dir, i+1)] = &fstest.MapFile{Data: []byte("anon_inode:inotify"), Mode: fs.ModeSymlink}
		}
	}
	shim := func(pid int, pod string) {
		process(pid, 1, "/srv/libexec/berth/containerd-shim-berth-v2", 1)
		proc[fmt.Sprintf("%d/cwd/config.json", pid)] = &fstest.MapFile{Data: fmt.Appendf(nil,
			`{"annotations":{"io.kubernetes.cri.sandbox-namespace":"default","io.kubernetes.cri.sandbox-name":%q}}`, pod)}
	}
	proc["uptime"] = &fstest.MapFile{}
	process(1, 0, "/sbin/init", 0)
	process(2, 1, "editor", 100)
	if pod, instances := mostWatchers(proc); instances != 0 {
		t.Errorf("without pods: pod %q has %d", pod, instances)
	}
	shim(10, "other")
	process(11, 10, "sleep", 7)
	shim(20, "hostile")
	process(21, 20, "sh", 4)
	process(22, 21, "greedy", 5)
	process(23, 99, "orphan", 50) // its parent has just ended
	if pod, instances := mostWatchers(proc); pod != "default/hostile" || instances != 9 {
		t.Errorf("pod %q has %d, want default/hostile with 9", pod, instances)
	}
}
