package integration

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/resourceview"
)

// affinityOf returns the CPUs that a process may use, as a list.
func affinityOf(pid string) string {
	text, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return err.Error()
	}
	_, rest, _ := strings.Cut(string(text), "Cpus_allowed_list:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// bound returns the CPUs that a process of a container may use.
func bound(t *testing.T, n *node, id, pid string) cpuset.CPUSet {
	t.Helper()
	text, err := n.exec(id, "affinity", pid)
	if err != nil {
		t.Fatal(err)
	}
	cpus, err := cpuset.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return cpus
}

func TestContainersAreBoundToCPUs(t *testing.T) {
	all, err := cpuset.Parse(affinityOf("self"))
	if err != nil {
		t.Fatal(err)
	}
	if all.Size() < 2 {
		t.Skip("this machine has one CPU")
	}
	n := startNode(t)
	n.helperImage()
	p := n.runPod("bound")
	// A limit of half a CPU each.
	one, two := p.run("one", 0, "sleep"), p.run("two", 0, "sleep")
	first, second := bound(t, n, one, "1"), bound(t, n, two, "1")
	if first.Size() != 1 || second.Size() != 1 || first.Equals(second) {
		t.Errorf("containers run on CPUs %s and %s of %s, want one each", first, second, all)
	}
	if cpus := bound(t, n, one, "self"); !cpus.Equals(first) {
		t.Errorf("exec runs on CPUs %s, its container on %s", cpus, first)
	}
	_, err = n.runtime.UpdateContainerResources(testContext(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: one, Linux: &cri.LinuxContainerResources{CpuQuota: 150000, CpuPeriod: 100000},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{"1", "self"} {
		if cpus := bound(t, n, one, pid); cpus.Size() != 2 {
			t.Errorf("after a resize to 1.5 CPUs: process %s runs on CPUs %s", pid, cpus)
		}
	}
	if cpus := bound(t, n, n.runPod("host", withPIDs(cri.NamespaceMode_NODE)).run("host", 0, "sleep"), "self"); !cpus.Equals(all) {
		t.Errorf("a container with the node's PIDs runs on CPUs %s, want %s", cpus, all)
	}
	p.remove()
	forgotten := eventually(10*time.Second, func() bool {
		text, err := os.ReadFile("/run/berth/cpus-in-use")
		return err == nil && len(text) == 0
	})
	if !forgotten {
		t.Error("CPUs of a removed pod count as used")
	}
}

// Programs in a container size themselves by files that show its limits.
func TestContainersSeeTheirLimits(t *testing.T) {
	n := startNode(t)
	n.helperImage()
	p := n.runPod("limits")
	id := p.run("main", 64<<20, "grow", "24")
	show := func(paths ...string) string {
		t.Helper()
		text, err := n.exec(id, append([]string{"cat"}, paths...)...)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	cpus := bound(t, n, id, "1").String()
	for path, want := range map[string]string{
		"/sys/fs/cgroup/memory.max":            strconv.Itoa(64 << 20),
		"/sys/fs/cgroup/cpu.max":               "50000 100000",
		"/sys/fs/cgroup/cpuset.cpus.effective": cpus,
		"/sys/devices/system/cpu/online":       cpus,
	} {
		if got := show(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if total := field(show("/proc/meminfo"), "MemTotal"); total != 64<<10 {
		t.Errorf("/proc/meminfo says %d kB of memory", total)
	}
	if n := strings.Count(show("/proc/cpuinfo"), "processor\t:"); n != 1 {
		t.Errorf("/proc/cpuinfo has %d CPUs", n)
	}
	if lines := regexp.MustCompile(`(?m)^cpu[0-9]+ `).FindAllString(show("/proc/stat"), -1); len(lines) != 1 || lines[0] != "cpu"+cpus+" " {
		t.Errorf("/proc/stat has %q", lines)
	}
	for _, path := range []string{"/proc/loadavg", "/proc/uptime"} {
		if !regexp.MustCompile(`^[0-9]+\.[0-9][0-9] [0-9]`).MatchString(show(path)) {
			t.Errorf("%s: %q", path, show(path))
		}
	}
	// When the container's memory use has grown, the files show it, and not the
	// free memory of the machine.
	grown := eventually(10*time.Second, func() bool {
		used, _ := strconv.Atoi(show("/sys/fs/cgroup/memory.current"))
		left := field(show("/proc/meminfo"), "MemAvailable")
		return used > 24<<20 && left > 20<<10 && left < 40<<10
	})
	if !grown {
		t.Errorf("memory.current %s, meminfo\n%s", show("/sys/fs/cgroup/memory.current"), show("/proc/meminfo"))
	}
	_, err := n.runtime.UpdateContainerResources(testContext(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: id, Linux: &cri.LinuxContainerResources{MemoryLimitInBytes: 128 << 20, CpuQuota: 25000, CpuPeriod: 100000},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := show("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpu.max"); got != "134217728\n25000 100000" {
		t.Errorf("after a resize: %q", got)
	}
	// The pod is on the node's network, so it has no fast path.
	if got := memoryBySysinfo(t, n, id); got != 128<<20 {
		t.Errorf("sysinfo(2) reports %d bytes of memory", got)
	}
	host := n.runPod("host", withPIDs(cri.NamespaceMode_NODE)).run("host", 64<<20, "sleep")
	if text, err := n.exec(host, "cat", "/proc/meminfo"); err != nil || field(text, "MemTotal") == 64<<10 {
		t.Errorf("a container with the node's PIDs does not see the machine: %v", err)
	}
	own := n.runPod("own", func(c *cri.PodSandboxConfig) { c.Annotations = map[string]string{"berth.dev/sysinfo": "off"} })
	for name, id := range map[string]string{"the node's PIDs": host, "a listener of its own": own.run("own", 64<<20, "sleep")} {
		if got := memoryBySysinfo(t, n, id); got <= 128<<20 {
			t.Errorf("a container with %s: sysinfo(2) reports %d bytes of memory", name, got)
		}
	}
	if left, err := filepath.Glob("/run/berth/containerd/io.containerd.runtime.v2.task/k8s.io/*/view-*/proc"); err != nil || len(left) > 0 {
		t.Errorf("mounts are left: %v %v", left, err)
	}
}

// memoryBySysinfo returns the memory, in bytes, that a new process of a container
// learns from sysinfo(2).
func memoryBySysinfo(t *testing.T, n *node, id string) uint64 {
	t.Helper()
	text, err := n.exec(id, "sysinfo")
	if err != nil {
		t.Fatal(err)
	}
	memory, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return memory
}

// A reader of a view whose server was killed gets an error. It does not wait.
func TestViewOfDeadServer(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("/proc/self/exe", "view", dir)
	cmd.Args[0] = helperName
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	}()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "mounted\n" {
		t.Fatalf("server says %q, %v", line, err)
	}
	file := filepath.Join(dir, "file")
	if text, err := os.ReadFile(file); err != nil || string(text) != "text" {
		t.Errorf("read %q, %v", text, err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	failed := make(chan error, 1)
	go func() {
		_, err := os.ReadFile(file)
		failed <- err
	}()
	select {
	case err := <-failed:
		if !errors.Is(err, unix.ENOTCONN) {
			t.Errorf("read from a dead server: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a reader waits for a dead server")
	}
}

func serveView(dir string, stop <-chan os.Signal) int {
	err := resourceview.Mount(dir, map[string]func() string{"/file": func() string { return "text" }}, slog.New(slog.DiscardHandler))
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("mounted")
	<-stop
	return 0
}

// field returns the number of a line "name: number".
func field(text, name string) int {
	_, rest, _ := strings.Cut(text, name+":")
	words := strings.Fields(rest)
	if len(words) == 0 {
		return 0
	}
	number, _ := strconv.Atoi(words[0])
	return number
}
