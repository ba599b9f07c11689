package task

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/bundle"
	"berth.dev/berth/runtime/internal/pinning"
)

// CPUs holds the CPUs that containers may have.
type CPUs struct {
	// All is empty if it is unknown which CPUs belong to the run. Pods bound to the
	// wrong CPUs would compete with another job on CPUs that this job does not
	// have.
	All cpuset.CPUSet
	// Ledger is shared by the shims of a node.
	Ledger *pinning.Ledger
}

// chooseCPUs returns the CPUs to bind a container to, or none if it is not to be
// bound.
func (s *Service) chooseCPUs(id string, c bundle.Container) cpuset.CPUSet {
	if !c.SeesLimits || s.cpus.All.Size() == 0 {
		return cpuset.New()
	}
	cpus, err := s.cpus.Ledger.Claim(id, c.CPULimit, s.cpus.All)
	if err != nil {
		s.log.Warn("container is not bound to CPUs", "container", id, "error", err)
		return cpuset.New()
	}
	return cpus
}

func (s *Service) releaseCPUs(id string) {
	if s.cpus.All.Size() == 0 {
		return
	}
	if err := s.cpus.Ledger.Release(id); err != nil {
		s.log.Warn("CPUs count as used until the pod ends", "container", id, "error", err)
	}
}

func (s *Service) bind(id string, pid int, cpus cpuset.CPUSet) {
	if cpus.Size() == 0 {
		return
	}
	if err := pinning.Bind(pid, cpus); err != nil {
		s.log.Warn("container is not bound to CPUs", "container", id, "error", err)
	}
}

// rebind binds all processes of the container again after a resize of the CPU
// limit, even processes that have changed their own binding meanwhile.
func (s *Service) rebind(id string, c *container, r *specs.LinuxResources) {
	if r.CPU == nil || r.CPU.Quota == nil || !c.SeesLimits {
		return
	}
	s.mu.Lock()
	c.CPULimit = bundle.CPULimit(r)
	changed := c.Container
	s.mu.Unlock()
	cpus := s.chooseCPUs(id, changed)
	if cpus.Size() == 0 || cpus.Equals(s.boundTo(c)) {
		return
	}
	s.mu.Lock()
	c.cpus = cpus
	s.mu.Unlock()
	tree, err := s.tree()
	if err != nil {
		s.log.Warn("container keeps its earlier CPUs", "container", id, "error", err)
		return
	}
	for _, p := range tree[id] {
		s.bind(id, p.PID, cpus)
	}
}

func (s *Service) boundTo(c *container) cpuset.CPUSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.cpus
}
