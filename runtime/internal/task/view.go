package task

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/procfs"
	"berth.dev/berth/runtime/internal/resourceview"
	"berth.dev/berth/runtime/internal/sysinfo"
)

// Machine holds what a container without limits sees: the share of the machine
// that pods of the run may use.
type Machine struct {
	// Memory in bytes.
	Memory uint64
	// CPUs holds the CPUs that the shim may run on. Pods may use Count of them; 0 means
	// that containers see the whole machine. A container that is bound to no CPUs sees the
	// first ones of CPUs.
	CPUs  cpuset.CPUSet
	Count int
}

// viewPrefix begins the names of the folders in the shim's bundle whose files are
// bound into a container.
const viewPrefix = "view-"

// views makes the files that show containers their limits.
type views struct {
	dir string // the shim's bundle
	log *slog.Logger
}

// of returns the folder with the files of a container.
func (v views) of(id string) string { return filepath.Join(v.dir, viewPrefix+id) }

// show makes the files of a view, and returns the mounts that bring them into a container.
// If that fails, it returns none: the container starts, and sees the machine's values.
func (v views) show(id string, view *resourceview.View) []specs.Mount {
	dir := v.of(id)
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		if err = resourceview.Mount(dir, view.Files(), v.log); err != nil {
			v.log.Debug("the view of limits is made once", "container", id, "error", err)
			view.Usage = nil
			err = resourceview.Write(dir, view.Files())
		}
	}
	if err != nil {
		v.log.Warn("container sees the machine instead of its limits", "container", id, "error", err)
		return nil
	}
	var mounts []specs.Mount
	for _, path := range view.Mounts() {
		mounts = append(mounts, specs.Mount{
			Destination: path, Type: "bind", Source: filepath.Join(dir, path),
			Options: []string{"bind", "ro", "nosuid", "nodev", "noexec"},
		})
	}
	return mounts
}

// unmount unmounts a view once the container has bound it, or will never do so. Otherwise
// the mount would remain if the shim is killed.
func (v views) unmount(id string) {
	if err := resourceview.Unmount(v.of(id)); err != nil {
		v.log.Warn("a mount is left", "container", id, "error", err)
	}
}

// remove removes the files of a container that has ended.
func (v views) remove(id string) {
	if err := os.RemoveAll(v.of(id)); err != nil {
		v.log.Warn("files are left until the pod ends", "container", id, "error", err)
	}
}

// showLimits returns the mounts of a container's view of its limits. It returns none if
// the share of the machine that pods may use is not known.
func (s *Service) showLimits(id string, c *container) []specs.Mount {
	if s.machine.Count == 0 {
		return nil
	}
	return s.views.show(id, &resourceview.View{
		Limits:   func() resourceview.Limits { return s.limits(c) },
		Usage:    func() resourceview.Usage { return s.usage(id, c) },
		Proc:     "/proc",
		Version1: resourceview.Version1("/proc"),
	})
}

// memoryVariable passes to berth-runc the memory, in bytes, that each container of
// the pod sees. The shim's environment is runc's.
const memoryVariable = "BERTH_MEMORY_OF_CONTAINERS"

// updateMemory makes sysinfo(2) report the memory that a container sees, in
// processes that start from now on. A running process keeps the earlier number.
func (s *Service) updateMemory(id string, c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c == nil || !c.SeesLimits || c.Listens || s.ownListener {
		delete(s.memory, id)
	} else {
		s.memory[id] = s.machine.memoryOf(c.MemoryLimit)
	}
	text, err := json.Marshal(s.memory)
	if err == nil {
		err = os.Setenv(memoryVariable, string(text))
	}
	if err != nil {
		s.log.Warn("sysinfo(2) reports the memory of the machine", "container", id, "error", err)
	}
}

// Sysinfo makes sysinfo(2) report the memory that a container sees, in processes
// that the calling thread starts. It implements Listen.
//
// Processes of a pod with the fast path get their filter from berth-runc.
func (s *Service) Sysinfo(id string) {
	memory := func() uint64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.memory[id]
	}
	if memory() == 0 || s.fastPath != "" && os.Getenv(s.fastPath) != "" {
		return
	}
	listener, err := sysinfo.Install()
	if err != nil {
		s.log.Warn("sysinfo(2) reports the memory of the machine", "container", id, "error", err)
		return
	}
	go func() {
		if err := sysinfo.Serve(listener, memory); err != nil {
			s.log.Error("sysinfo(2) is not answered", "container", id, "error", err)
		}
	}()
}

// memoryOf returns the memory that a container with a limit, or with 0 for none, sees.
func (m Machine) memoryOf(limit int64) uint64 {
	if limit > 0 {
		return min(m.Memory, uint64(limit))
	}
	return m.Memory
}

// endViews unmounts the views of a shim that was killed while it made a
// container.
func endViews(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, viewPrefix+"*"))
	for _, dir := range left {
		_ = resourceview.Unmount(dir) // removing the bundle reports the error
	}
}

// limits returns the limits of a container or, where it has none, of the run.
func (s *Service) limits(c *container) resourceview.Limits {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := resourceview.Limits{Memory: s.machine.memoryOf(c.MemoryLimit), MilliCPU: c.CPULimit, CPUs: c.cpus}
	if l.CPUs.Size() == 0 {
		count := s.machine.Count
		if c.CPULimit > 0 {
			count = min(count, int((c.CPULimit+999)/1000))
		}
		cpus := s.machine.CPUs.List()
		l.CPUs = cpuset.New(cpus[:min(count, len(cpus))]...)
	}
	return l
}

// Bounds for the cost of measurements, because programs read these files as often as they
// like. Two measurements begin at least measureEvery apart, and at least measurePart times
// the duration of the first one.
const (
	measureEvery = 100 * time.Millisecond
	measurePart  = 20
)

// usage measures a container, or returns the last result if that is recent or measuring
// fails. Only one goroutine for each container calls it.
func (s *Service) usage(id string, c *container) resourceview.Usage {
	s.mu.Lock()
	last, until := c.measured, c.measuredUntil
	s.mu.Unlock()
	begin := time.Now()
	if begin.Before(until) {
		return last
	}
	tree, err := s.tree()
	if err != nil {
		s.log.Debug("container is not measured", "container", id, "error", err)
		return last
	}
	m := procfs.TotalMemory(tree[id], s.proc.Memory).WithFiles(s.files()[id])
	u := procfs.Sum(tree[id])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(c, u)
	c.measured = resourceview.Usage{
		Anonymous: m.Anon, Shared: m.Shmem, Mapped: m.File, PageTables: m.PageTables,
		User: c.counted.User, System: c.counted.System,
		Faults: c.counted.MinorFaults + c.counted.MajorFaults, MajorFaults: c.counted.MajorFaults,
		Threads: u.Threads,
	}
	c.measuredUntil = begin.Add(max(measureEvery, measurePart*time.Since(begin)))
	return c.measured
}
