package slurm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/cpuset"
)

// NodeCPUs returns the CPUs of this node that the job has, by the kernel's numbers,
// for sites where Slurm binds no processes to them. It fails where slurm.conf does
// not match the machine.
func NodeCPUs(ctx context.Context, job Job, ask Ask) (cpuset.CPUSet, error) {
	return nodeCPUs(ctx, job, ask, "/sys/devices/system/cpu")
}

func nodeCPUs(ctx context.Context, job Job, ask Ask, sys string) (cpuset.CPUSet, error) {
	said, err := ask(ctx, "scontrol", "--oneliner", "--details", "show", "job", job.ID)
	if err != nil {
		return cpuset.New(), err
	}
	abstract, err := allocatedCPUs(string(said), job.NodeName)
	if err != nil {
		return cpuset.New(), fmt.Errorf("read the CPUs of job %s on node %s from scontrol: %w", job.ID, job.NodeName, err)
	}
	machine, err := inSlurmsOrder(sys)
	if err != nil {
		return cpuset.New(), err
	}
	if said, err = ask(ctx, "scontrol", "--oneliner", "show", "node", job.NodeName); err != nil {
		return cpuset.New(), err
	}
	if total, _ := field(string(said), "CPUTot"); total != strconv.Itoa(len(machine)) {
		return cpuset.New(), fmt.Errorf("find the CPUs of job %s on node %s: Slurm counts %s CPUs there, the kernel %d", job.ID, job.NodeName, total, len(machine))
	}
	var cpus []int
	for _, id := range abstract.List() {
		if id >= len(machine) {
			return cpuset.New(), fmt.Errorf("find the CPUs of job %s on node %s: there is no CPU %d", job.ID, job.NodeName, id)
		}
		cpus = append(cpus, machine[id])
	}
	return cpuset.New(cpus...), nil
}

// allocatedCPUs reads the words "Nodes=n[1-2] CPU_IDs=0-3" of a job's details.
func allocatedCPUs(said, node string) (cpuset.CPUSet, error) {
	here := false
	for word := range strings.FieldsSeq(said) {
		if list, ok := strings.CutPrefix(word, "Nodes="); ok {
			nodes, err := ExpandHosts(list)
			here = err == nil && slices.Contains(nodes, node)
		}
		if ids, ok := strings.CutPrefix(word, "CPU_IDs="); ok && here {
			return cpuset.Parse(ids)
		}
	}
	return cpuset.New(), fmt.Errorf("there are no CPU_IDs in its answer")
}

// inSlurmsOrder returns the online CPUs as Slurm numbers them: by socket, core and
// thread (CPU_IDs are "abstract", src/slurmd/common/xcpuinfo.c). slurmd uses hwloc,
// which orders sockets and cores by their first CPU.
func inSlurmsOrder(sys string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(sys, "online"))
	if err != nil {
		return nil, fmt.Errorf("list the machine's CPUs: %w", err)
	}
	online, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("list the machine's CPUs: %w", err)
	}
	type place struct{ socket, core, cpu int }
	var places []place
	for _, cpu := range online.List() {
		topology := filepath.Join(sys, "cpu"+strconv.Itoa(cpu), "topology")
		// Older kernels have only the second names.
		socket, err := firstOf(topology, "package_cpus_list", "core_siblings_list")
		if err != nil {
			return nil, err
		}
		core, err := firstOf(topology, "core_cpus_list", "thread_siblings_list")
		if err != nil {
			return nil, err
		}
		places = append(places, place{socket, core, cpu})
	}
	slices.SortFunc(places, func(a, b place) int {
		return slices.Compare([]int{a.socket, a.core, a.cpu}, []int{b.socket, b.core, b.cpu})
	})
	var order []int
	for _, p := range places {
		order = append(order, p.cpu)
	}
	return order, nil
}

// firstOf returns the lowest CPU of a list in the first of files that exists.
func firstOf(dir string, files ...string) (int, error) {
	var text []byte
	var err error
	for _, file := range files {
		if text, err = os.ReadFile(filepath.Join(dir, file)); err == nil {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("read the topology of CPUs: %w", err)
	}
	cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
	if err != nil || cpus.Size() == 0 {
		return 0, fmt.Errorf("read the topology of CPUs in %s: %q is not a list", dir, text)
	}
	return cpus.List()[0], nil
}
