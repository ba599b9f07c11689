package integration

import (
	"os"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/cpuset"
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
	bound := func(id, pid string) cpuset.CPUSet {
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
	// A limit of half a CPU each.
	one, two := p.run("one", 0, "sleep"), p.run("two", 0, "sleep")
	first, second := bound(one, "1"), bound(two, "1")
	if first.Size() != 1 || second.Size() != 1 || first.Equals(second) {
		t.Errorf("containers run on CPUs %s and %s of %s, want one each", first, second, all)
	}
	if cpus := bound(one, "self"); !cpus.Equals(first) {
		t.Errorf("exec runs on CPUs %s, its container on %s", cpus, first)
	}
	_, err = n.runtime.UpdateContainerResources(testContext(t), &cri.UpdateContainerResourcesRequest{
		ContainerId: one, Linux: &cri.LinuxContainerResources{CpuQuota: 150000, CpuPeriod: 100000},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []string{"1", "self"} {
		if cpus := bound(one, pid); cpus.Size() != 2 {
			t.Errorf("after a resize to 1.5 CPUs: process %s runs on CPUs %s", pid, cpus)
		}
	}
	if cpus := bound(n.runPod("host", withPIDs(cri.NamespaceMode_NODE)).run("host", 0, "sleep"), "self"); !cpus.Equals(all) {
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
