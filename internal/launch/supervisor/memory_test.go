package supervisor

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/node/sandbox"
)

// If the kernel kills a role for lack of memory, a message names the pod that uses most,
// however the end of the role and the checks follow each other. A role that somebody else
// kills, or that ends by itself, has no such message. Pods of other runs are not named.
func TestPodWithMostMemoryIsNamed(t *testing.T) {
	proc := fakeProc{t, t.TempDir()}
	proc.kills(3)
	proc.process(1, 0, "/sbin/init", 0)
	proc.process(2, 1, "/opt/berth/bin/berth", 0)
	proc.process(3, 2, "/opt/berth/libexec/berth-sandbox", 0)
	proc.process(4, 3, "/opt/berth/libexec/berth-kube", 0)
	proc.memory(4, 90_000)
	proc.shim(10, 3, installedShim, "other", 0)
	proc.process(11, 10, "server", 0)
	proc.memory(11, 20_000)
	proc.shim(20, 3, installedShim, "hostile", 0)
	proc.process(21, 20, "sh", 0)
	proc.process(22, 21, "greedy", 0)
	proc.memory(21, 2_000)
	proc.memory(22, 30_000)
	proc.process(23, 21, "ended", 0)
	proc.shim(30, 1, installedShim, "elsewhere", 0)
	proc.process(31, 30, "larger", 0)
	proc.memory(31, 80_000)
	synctest.Test(t, func(t *testing.T) { namesPodWithMostMemory(t, proc) })
}

func namesPodWithMostMemory(t *testing.T, proc fakeProc) {
	var said bytes.Buffer
	s := newStage(t)
	s.log, s.proc, s.self, s.oomKills = slog.New(slog.NewTextHandler(&said, nil)), proc.dir, "2", [2]uint64{3, 3}
	r := s.play(t, &Role{Name: "containerd", Silent: true})
	explained := "starting it again (the kernel has just killed processes for lack of memory, of this job or of another one)"
	named := fmt.Sprintf("pod default/hostile uses most memory of the pods here, %d MB", 32_000*os.Getpagesize()/1e6)
	for _, step := range []struct {
		name   string
		kills  int
		checks int // before the end
		status sandbox.Status
		want   bool
	}{
		{"killed by somebody", 3, 0, killed(), false},
		{"out of memory", 4, 0, killed(), true},
		{"out of memory, seen by a check", 5, 1, killed(), true},
		{"long ago", 5, 2, killed(), false},
		{"ended by itself", 6, 0, sandbox.Status{Code: 1}, false},
	} {
		said.Reset()
		r.restarts = nil
		proc.kills(step.kills)
		for range step.checks {
			s.look(s.clock)
		}
		s.Ended("containerd", step.status)
		synctest.Wait()
		for text, want := range map[string]bool{"starting it again": true, explained: step.want, named: step.want} {
			if strings.Contains(said.String(), text) != want {
				t.Errorf("%s: said %q", step.name, said.String())
			}
		}
	}
}

// A search that does not end, as on a file system that hangs, delays no role.
func TestSearchForPodDelaysNoRole(t *testing.T) {
	proc := fakeProc{t, t.TempDir()}
	proc.kills(3)
	proc.process(2, 1, "berth", 0)
	proc.process(3, 2, "greedy", 0)
	stuck := filepath.Join(proc.dir, "3/statm")
	proc.must(unix.Mkfifo(stuck, 0o600))
	writer, err := os.OpenFile(stuck, os.O_RDWR, 0)
	proc.must(err)
	defer writer.Close() // ends the search
	s := newStage(t)
	s.proc, s.self, s.oomKills = proc.dir, "2", [2]uint64{2, 2}
	s.play(t, &Role{Name: "containerd", Silent: true})
	s.Ended("containerd", killed())
	s.EndOutside()
	if s.starts != 2 {
		t.Errorf("%d starts, want 2", s.starts)
	}
}

// A role that the supervisor has killed itself was not killed for lack of memory, although
// the kernel may have killed others.
func TestHungRoleHadMemory(t *testing.T) {
	proc := fakeProc{t, t.TempDir()}
	proc.kills(3)
	var said bytes.Buffer
	s := newStage(t)
	s.log, s.proc, s.oomKills = slog.New(slog.NewTextHandler(&said, nil)), proc.dir, [2]uint64{2, 2}
	r := s.play(t, &Role{Name: "containerd"})
	s.comeUp(t, r)
	s.killHung(s.clock.Add(hungAfter))
	s.Ended("containerd", killed())
	if text := said.String(); s.kills != 1 || !strings.Contains(text, "starting it again") || strings.Contains(text, "lack of memory") {
		t.Errorf("%d kills, said %q", s.kills, text)
	}
	s.Ended("containerd", killed())
	if !strings.Contains(said.String(), "lack of memory") {
		t.Errorf("the next life: said %q", said.String())
	}
}
