package supervisor

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/node/sandbox"
)

// If the kernel kills a role for lack of memory, the message names the pod that uses most,
// however the end of the role and the checks follow each other. A role that somebody else
// kills, or that ends by itself, has no such message.
func TestPodWithMostMemoryIsNamed(t *testing.T) {
	proc := fakeProc{t, t.TempDir()}
	proc.kills(3)
	proc.process(1, 0, "/sbin/init", 0)
	proc.process(2, 1, "/opt/berth/libexec/berth-kube", 0)
	proc.memory(2, 90_000)
	proc.shim(10, 1, installedShim, "other", 0)
	proc.process(11, 10, "server", 0)
	proc.memory(11, 20_000)
	proc.shim(20, 1, installedShim, "hostile", 0)
	proc.process(21, 20, "sh", 0)
	proc.process(22, 21, "greedy", 0)
	proc.memory(21, 2_000)
	proc.memory(22, 30_000)
	proc.process(23, 21, "ended", 0)

	var said bytes.Buffer
	s := newStage(t)
	s.log, s.proc, s.oomKills = slog.New(slog.NewTextHandler(&said, nil)), proc.dir, [2]uint64{3, 3}
	r := s.play(t, &Role{Name: "containerd"})
	s.comeUp(t, r)
	killed := sandbox.Status{Signal: unix.SIGKILL}
	named := fmt.Sprintf("starting it again (the kernel has just killed processes for lack of memory; pod default/hostile uses most, %d MB)", 32_000*os.Getpagesize()/1e6)
	for _, step := range []struct {
		name   string
		kills  int
		checks int // before the end
		status sandbox.Status
		want   bool
	}{
		{"killed by somebody", 3, 0, killed, false},
		{"out of memory", 4, 0, killed, true},
		{"out of memory, seen by a check", 5, 1, killed, true},
		{"long ago", 5, 2, killed, false},
		{"ended by itself", 6, 0, sandbox.Status{Code: 1}, false},
	} {
		said.Reset()
		r.restarts = nil
		proc.kills(step.kills)
		for range step.checks {
			s.look(s.clock)
		}
		s.Ended("containerd", step.status)
		if got := strings.Contains(said.String(), named); got != step.want || !strings.Contains(said.String(), "starting it again") {
			t.Errorf("%s: said %q", step.name, said.String())
		}
	}
}
