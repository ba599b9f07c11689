package integration

import (
	"bytes"
	"context"
	"os"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// endContext returns a context for code that runs after a test, when the test's
// context is done.
func endContext() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	time.AfterFunc(60*time.Second, cancel)
	return ctx
}

func TestRunAndExec(t *testing.T) {
	n := startNode(t, "HTTPS_PROXY=http://proxy.test:3128", "NO_PROXY=10.0.0.0/8")
	n.helperImage()
	status, err := n.runtime.Status(testContext(t), &cri.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range status.Status.Conditions {
		if !c.Status {
			t.Errorf("condition %s: %s %s", c.Type, c.Reason, c.Message)
		}
	}
	for _, h := range status.RuntimeHandlers {
		if h.Name == "runc" {
			continue // containerd's own default, which nothing here uses
		}
		if h.Features == nil || !h.Features.RecursiveReadOnlyMounts || h.Features.UserNamespaces {
			t.Errorf("runtime %q offers %v", h.Name, h.Features)
		}
	}
	p := n.runPod("plain")
	id := p.run("sleeper", 0, "sleep")
	for want, args := range map[string][]string{
		"hello":                  {"echo", "hello"},
		"http://proxy.test:3128": {"env", "HTTPS_PROXY"},
		"10.0.0.0/8":             {"env", "NO_PROXY"},
		"800":                    {"oomscore"},
	} {
		if got, err := n.exec(id, args...); err != nil || got != want {
			t.Errorf("exec %v: got %q, %v; want %q", args, got, err, want)
		}
	}
	if _, err := n.exec(id, "exit", "7"); err == nil {
		t.Error("exec that fails: no error")
	}
	// runc would name the keyrings of containers and of their execs so.
	if keys, err := os.ReadFile("/proc/keys"); err == nil && (bytes.Contains(keys, []byte(id)) || bytes.Contains(keys, []byte(p.id))) {
		t.Errorf("the pod took keys:\n%s", keys)
	}
	failing := p.run("failing", 0, "exit", "9")
	if s := n.awaitExit(failing); s.ExitCode != 9 || s.Reason != "Error" {
		t.Errorf("ended with %d %s, want 9 Error", s.ExitCode, s.Reason)
	}
}

func TestOutOfMemory(t *testing.T) {
	n := startNode(t)
	n.helperImage()
	p := n.runPod("memory")
	for name, args := range map[string][]string{
		"at-once":  {"grow", "3000"},
		"slowly":   {"slowly", "100"},
		"children": {"family", "150"},
		"files":    {"fill", "/dev/shm/file", "60"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := int64(200 << 20)
			if name == "files" {
				limit = 40 << 20 // /dev/shm has 64 MB
			}
			id := p.run(name, limit, args...)
			s := n.awaitExit(id)
			if s.ExitCode != 137 || s.Reason != "OOMKilled" {
				t.Errorf("ended with %d %s, want 137 OOMKilled", s.ExitCode, s.Reason)
			}
		})
	}
	t.Run("under the limit", func(t *testing.T) {
		// In a separate pod, because files of others in /dev/shm would count.
		id := n.runPod("modest").run("modest", 200<<20, "grow", "100")
		var used uint64
		ok := eventually(10*time.Second, func() bool {
			answer, err := n.runtime.ContainerStats(testContext(t), &cri.ContainerStatsRequest{ContainerId: id})
			if err != nil {
				t.Fatal(err)
			}
			used = answer.Stats.Memory.WorkingSetBytes.Value
			return used > 100<<20
		})
		if !ok || used > 150<<20 {
			t.Errorf("statistics say %d MB, want a little over 100", used>>20)
		}
		update := func(limit int64) {
			t.Helper()
			_, err := n.runtime.UpdateContainerResources(testContext(t), &cri.UpdateContainerResourcesRequest{
				ContainerId: id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: limit, CpuQuota: 20000, CpuPeriod: 100000},
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		update(300 << 20)
		if s := n.status(id); s.State != cri.ContainerState_CONTAINER_RUNNING || s.Resources.Linux.MemoryLimitInBytes != 300<<20 {
			t.Errorf("after a resize: %v", s)
		}
		update(50 << 20)
		if s := n.awaitExit(id); s.ExitCode != 137 || s.Reason != "OOMKilled" {
			t.Errorf("below its use: ended with %d %s, want 137 OOMKilled", s.ExitCode, s.Reason)
		}
	})
}
