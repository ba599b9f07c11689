package task

import (
	"sync/atomic"
	"time"

	"berth.dev/berth/runtime/internal/memory"
	"berth.dev/berth/runtime/internal/procfs"
)

// meter measures the containers of a service for the watcher. Its methods are
// called by one goroutine.
type meter struct {
	service *Service
	// ran holds each process's processor time at the last measurement.
	ran map[int]time.Duration
	// stale is set when a process was started after the last measurement.
	stale atomic.Bool
}

// nothing is the CPU time below which no allocation can matter. A fork takes longer.
const nothing = 20 * time.Microsecond

// Idle reports whether the processes are still the same and have not run. A process
// that does not run cannot allocate memory or start another process.
func (m *meter) Idle() bool {
	if m.stale.Load() {
		return false
	}
	var run time.Duration
	for pid, before := range m.ran {
		now, err := procfs.ProcessorTime(pid)
		if err != nil {
			return false // the process has ended
		}
		run += max(now-before, before-now) // a lower time is of another process with the same pid
	}
	return run < nothing
}

// Measure returns the memory of containers by ID, and records the processor times of all
// processes for Idle.
func (m *meter) Measure(ids []string) (map[string]memory.Sample, error) {
	s := m.service
	m.stale.Store(false)
	tree, err := s.tree()
	if err != nil {
		m.stale.Store(true)
		return nil, err
	}
	clear(m.ran)
	for _, processes := range tree {
		for _, p := range processes {
			if t, err := procfs.ProcessorTime(p.PID); err == nil {
				m.ran[p.PID] = t
			}
		}
	}
	volumes := s.files()
	samples := make(map[string]memory.Sample, len(ids))
	for _, id := range ids {
		processes, files := tree[id], volumes[id]
		charged := func(read func(int) (procfs.Memory, error)) func() uint64 {
			return func() uint64 { return procfs.TotalMemory(processes, read).WithFiles(files).Charged() }
		}
		samples[id] = memory.Sample{
			Bound:   procfs.Sum(processes).Resident + files,
			Charged: charged(s.proc.Memory),
			Exact:   charged(s.proc.Proportional),
		}
	}
	return samples, nil
}

// files returns the bytes in memory volumes by container. A volume of several containers
// counts for each in equal parts, because the writer of a file is unknown. So the sum is
// right.
func (s *Service) files() map[string]uint64 {
	s.mu.Lock()
	users := map[string][]string{}
	for id, c := range s.containers {
		for _, path := range c.MemoryVolumes {
			if !c.ended {
				users[path] = append(users[path], id)
			}
		}
	}
	s.mu.Unlock()
	bytes := map[string]uint64{}
	for path, ids := range users {
		share := procfs.TmpfsUse(path) / uint64(len(ids))
		for _, id := range ids {
			bytes[id] += share
		}
	}
	return bytes
}
