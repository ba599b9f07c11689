package task

import (
	"log/slog"

	"github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/bundle"
	"berth.dev/berth/runtime/internal/pinning"
)

// CPUs holds the CPUs that containers may be bound to.
type CPUs struct {
	// All is empty if the CPUs of the run are unknown. Then pods are not bound, because on
	// wrong CPUs they would compete with another job.
	All cpuset.CPUSet
	// Ledger is shared by the shims of a node.
	Ledger *pinning.Ledger
}

// binder binds containers to CPUs.
type binder struct {
	CPUs
	log *slog.Logger
}

// choose returns the CPUs to bind a container to, or none if it is not to be
// bound.
func (b binder) choose(id string, c bundle.Container) cpuset.CPUSet {
	if !c.SeesLimits || b.All.Size() == 0 {
		return cpuset.New()
	}
	cpus, err := b.Ledger.Claim(id, c.CPULimit, b.All)
	if err != nil {
		b.log.Warn("container is not bound to CPUs", "container", id, "error", err)
		return cpuset.New()
	}
	return cpus
}

func (b binder) release(id string) {
	if b.All.Size() == 0 {
		return
	}
	if err := b.Ledger.Release(id); err != nil {
		b.log.Warn("CPUs count as used until the pod ends", "container", id, "error", err)
	}
}

func (b binder) bind(id string, pid int, cpus cpuset.CPUSet) {
	if cpus.Size() == 0 {
		return
	}
	if err := pinning.Bind(pid, cpus); err != nil {
		b.log.Warn("container is not bound to CPUs", "container", id, "error", err)
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
	cpus := s.cpus.choose(id, changed)
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
		s.cpus.bind(id, p.PID, cpus)
	}
}

func (s *Service) boundTo(c *container) cpuset.CPUSet {
	s.mu.Lock()
	defer s.mu.Unlock()
	return c.cpus
}
