package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// processes returns the pids of those whose command line has all of words.
func processes(words ...string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
next:
	for _, dir := range dirs {
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		for _, w := range words {
			if !bytes.Contains(line, []byte(w)) {
				continue next
			}
		}
		pid, _ := strconv.Atoi(filepath.Base(dir))
		pids = append(pids, pid)
	}
	return pids
}

func TestKilledShimLeavesNothing(t *testing.T) {
	for name, mode := range map[string]cri.NamespaceMode{
		"own-pids": cri.NamespaceMode_CONTAINER, "shared-pids": cri.NamespaceMode_POD, "node-pids": cri.NamespaceMode_NODE,
	} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t)
			n.helperImage()
			p := n.runPod(name, withPIDs(mode))
			id := p.run("one", 100<<20, "orphan", "stay")
			shims := processes("containerd-shim-berth-v2", p.id)
			if len(shims) != 1 {
				t.Fatalf("shims of the pod: %v", shims)
			}
			if err := syscall.Kill(shims[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.awaitExit(id)
			if !eventually(10*time.Second, func() bool { return len(processes("/bin/"+helperName)) == 0 }) {
				t.Errorf("processes are left: %v", processes("/bin/"+helperName))
			}
		})
	}
}

// A container that shares PIDs leaves orphans when its first process ends,
// because there is no cgroup where runc could find them.
func TestOrphansOfSharedPIDs(t *testing.T) {
	for name, mode := range map[string]cri.NamespaceMode{
		"shared-pids": cri.NamespaceMode_POD, "node-pids": cri.NamespaceMode_NODE,
	} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t)
			n.helperImage()
			p := n.runPod(name, withPIDs(mode))
			stays := p.run("stays", 0, "sleep")
			ends := p.run("ends", 100<<20, "orphan")
			if s := n.awaitExit(ends); s.ExitCode != 0 {
				t.Errorf("ended with %d", s.ExitCode)
			}
			if !eventually(5*time.Second, func() bool { return len(processes("sleep", helperName)) == 1 }) {
				t.Errorf("orphans are left: %v", processes("sleep", helperName))
			}
			if s := n.status(stays); s.State != cri.ContainerState_CONTAINER_RUNNING {
				t.Errorf("the other container of the pod is %v", s.State)
			}
			stopped := p.run("stopped", 0, "orphan", "stay")
			if _, err := n.runtime.StopContainer(testContext(t), &cri.StopContainerRequest{ContainerId: stopped, Timeout: 1}); err != nil {
				t.Errorf("stop: %v", err)
			}
			if !eventually(5*time.Second, func() bool { return len(processes("sleep", helperName)) == 1 }) {
				t.Errorf("orphans are left after a stop: %v", processes("sleep", helperName))
			}
		})
	}
}

// The memory of containers in one pod is measured separately, although they
// share a PID namespace.
func TestSharedPIDsOutOfMemory(t *testing.T) {
	n := startNode(t)
	n.helperImage()
	p := n.runPod("shared", withPIDs(cri.NamespaceMode_POD))
	stays := p.run("stays", 100<<20, "grow", "50")
	grows := p.run("grows", 100<<20, "family", "200")
	if s := n.awaitExit(grows); s.ExitCode != 137 || s.Reason != "OOMKilled" {
		t.Errorf("ended with %d %s, want 137 OOMKilled", s.ExitCode, s.Reason)
	}
	if s := n.status(stays); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("the other container of the pod is %v", s)
	}
}

func TestTwentyPodsAtOnce(t *testing.T) {
	n := startNode(t)
	n.helperImage()
	begin := time.Now()
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			p := n.runPod(fmt.Sprint("pod-", i))
			p.run("sleeper", 100<<20, "sleep")
		})
	}
	group.Wait()
	t.Logf("20 pods running after %s", time.Since(begin).Round(time.Millisecond))
	// A container counts as running a moment before it has executed its program.
	if !eventually(10*time.Second, func() bool { return len(processes("/bin/"+helperName, "sleep")) == 20 }) {
		t.Errorf("%d containers run, want 20", len(processes("/bin/"+helperName, "sleep")))
	}
	n.reportUse()
}

// reportUse logs memory and processor time; it judges neither.
func (n *node) reportUse() {
	n.t.Helper()
	for _, name := range []string{"containerd-shim-berth-v2", "/bin/containerd\x00", "/pause", "/bin/" + helperName} {
		var total, count int
		for _, pid := range processes(strings.TrimPrefix(name, "/bin/")) {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
					kb, _ := strconv.Atoi(f[1])
					total += kb
					count++
				}
			}
		}
		if count > 0 {
			n.t.Logf("%-28q %2d processes, PSS %6d kB, each %5d kB", name, count, total, total/count)
		}
	}
}

// A restarted containerd finds its pods again.
func TestContainerdRestart(t *testing.T) {
	n := startNode(t)
	n.helperImage()
	p := n.runPod("outlives")
	id := p.run("sleeper", 100<<20, "sleep")
	_ = n.cmd.Process.Kill()
	<-n.exited
	n.start()
	if s := n.status(id); s.State != cri.ContainerState_CONTAINER_RUNNING {
		t.Errorf("container is %v", s.State)
	}
	if got, err := n.exec(id, "echo", "still here"); err != nil || got != "still here" {
		t.Errorf("exec: %q, %v", got, err)
	}
}
