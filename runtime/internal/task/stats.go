package task

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2/stats"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"berth.dev/berth/runtime/internal/procfs"
)

// Stats returns the statistics of a container in the form of cgroup v2. It counts from /proc
// if the kernel does not enforce the memory limit.
func (s *Service) Stats(ctx context.Context, r *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	c := s.container(r.ID)
	if c == nil {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "container %s is not here", r.ID)
	}
	if c.MemoryEnforced {
		return s.TTRPCTaskService.Stats(ctx, r)
	}
	tree, err := s.tree()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	processes := tree[r.ID]
	files := s.files()[r.ID]
	metrics := s.metrics(c, procfs.Sum(processes), procfs.TotalMemory(processes, s.proc.Memory).WithFiles(files))
	answer, err := typeurl.MarshalAnyToProto(metrics)
	if err != nil {
		return nil, errgrpc.ToGRPC(fmt.Errorf("encode statistics of container %s: %w", r.ID, err))
	}
	return &taskapi.StatsResponse{Stats: answer}, nil
}

func (s *Service) metrics(c *container, u procfs.Usage, m procfs.Memory) *stats.Metrics {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(c, u)
	limit := uint64(math.MaxUint64)
	if c.MemoryLimit > 0 {
		limit = uint64(c.MemoryLimit)
	}
	return &stats.Metrics{
		CPU: &stats.CPUStat{
			UsageUsec:  microseconds(c.counted.User + c.counted.System),
			UserUsec:   microseconds(c.counted.User),
			SystemUsec: microseconds(c.counted.System),
		},
		Memory: &stats.MemoryStat{
			Usage:      m.Charged(),
			UsageLimit: limit,
			Anon:       m.Anon,
			Shmem:      m.Shmem,
			File:       m.File + m.Shmem,
			FileMapped: m.File,
			Pgfault:    c.counted.MinorFaults + c.counted.MajorFaults,
			Pgmajfault: c.counted.MajorFaults,
		},
		Pids: &stats.PidsStat{Current: uint64(u.Threads)},
	}
}

// count raises the counters of a container to u; they never fall. The caller holds s.mu.
func (s *Service) count(c *container, u procfs.Usage) {
	c.counted.User = max(c.counted.User, u.User)
	c.counted.System = max(c.counted.System, u.System)
	c.counted.MinorFaults = max(c.counted.MinorFaults, u.MinorFaults)
	c.counted.MajorFaults = max(c.counted.MajorFaults, u.MajorFaults)
}

// Pids lists the processes of a container. Without a cgroup it finds them in /proc, because
// runc finds them only by their cgroup.
func (s *Service) Pids(ctx context.Context, r *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	if s.node.Controllers != nil {
		return s.TTRPCTaskService.Pids(ctx, r)
	}
	if s.container(r.ID) == nil {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "container %s is not here", r.ID)
	}
	tree, err := s.tree()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	response := &taskapi.PidsResponse{}
	for _, p := range tree[r.ID] {
		response.Processes = append(response.Processes, &tasktypes.ProcessInfo{Pid: uint32(p.PID)})
	}
	return response, nil
}

func microseconds(d time.Duration) uint64 { return uint64(d / time.Microsecond) }
