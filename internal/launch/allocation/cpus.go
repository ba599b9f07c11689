package allocation

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/job/slurm"
)

// CPUSet returns the CPUs of this node as a list, such as "0-3,8", so that pods can be
// bound to them. It returns an empty string if they are unknown. Bound to the wrong CPUs,
// pods would compete with another job while the CPUs of this job are idle.
func (a *Allocation) CPUSet(ctx context.Context, cpus probe.CPUs, nodesPerHost int) string {
	own, err := affinity()
	if err != nil || nodesPerHost > 1 {
		return "" // the CPUs are not divided among the nodes of the host
	}
	if cpus.Count == own.Size() {
		return own.String()
	}
	if a == nil || a.Job.NodeName == "" {
		return "" // a quota limits the number of CPUs but does not select them
	}
	// Slurm chose CPUs but binds nothing to them.
	chosen, err := slurm.NodeCPUs(ctx, a.Job, a.Ask)
	if err == nil && (chosen.Size() != cpus.Count || !chosen.IsSubsetOf(own)) {
		err = fmt.Errorf("the job has CPUs %s as scontrol says, this step has %d of %s", chosen, cpus.Count, own)
	}
	if err != nil {
		a.log.Debug("pods are not bound to CPUs: " + err.Error())
		return ""
	}
	return chosen.String()
}

// affinity returns the CPUs available to this process.
func affinity() (cpuset.CPUSet, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return cpuset.New(), fmt.Errorf("get the CPUs of this process: %w", err)
	}
	var cpus []int
	for cpu := range len(set) * 64 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpuset.New(cpus...), nil
}
