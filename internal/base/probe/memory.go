package probe

import (
	"path"
	"strconv"
	"strings"
)

// Memory is the amount of memory that the process and its children may use.
type Memory struct {
	// Bytes is the smallest limit found. Source is the file or variable that has it.
	Bytes  uint64
	Source string
	// Enforced is true if the limit is a cgroup's, which the kernel enforces by killing
	// processes. A limit from Slurm's environment may be enforced only by Slurm, or not
	// at all.
	Enforced bool
	// UsageFile is the file with the usage in bytes that the kernel compares with the
	// limit. It is empty if Enforced is false.
	UsageFile string
	// Physical and Available are the machine's memory in bytes, from /proc/meminfo.
	Physical, Available uint64
}

// The memory that a node with a control plane needs, in bytes; see the
// measurements in bench/results.
const (
	// HeadMemory is for berth's own roles.
	HeadMemory = 512 << 20
	// SmallPod is the least that is left for pods.
	SmallPod = 128 << 20
)

// Holds reports whether the memory suffices for a node whose roles need the given number of
// bytes, and one small pod. berth doctor and berth run both use it.
func (m Memory) Holds(roles uint64) bool { return m.Bytes >= roles+SmallPod }

// Memory returns the effective memory limit of the process: the smallest of
// the machine's memory, the limits of the process's cgroup and its ancestors
// (v1 and v2), and what Slurm says was asked for.
func (h *Host) Memory() Memory {
	info := parseColons(h.read("/proc/meminfo"))
	m := Memory{Physical: kibibytes(info["MemTotal"]), Available: kibibytes(info["MemAvailable"])}
	m.Bytes, m.Source = m.Physical, "physical memory"
	if bytes, source, ok := h.slurmMemory(); ok && bytes < m.Bytes {
		m.Bytes, m.Source = bytes, source
	}
	// The kernel's own limits win ties, because they name the file with the
	// usage.
	enforce := func(bytes uint64, source, usage string) {
		if bytes <= m.Bytes {
			m.Bytes, m.Source, m.UsageFile, m.Enforced = bytes, source, usage, true
		}
	}
	for _, dir := range h.cgroupDirs("") {
		for _, name := range []string{"memory.max", "memory.high"} {
			if bytes, ok := h.cgroupNumber(path.Join(dir, name)); ok {
				enforce(bytes, path.Join(dir, name), path.Join(dir, "memory.current"))
			}
		}
	}
	for i, dir := range h.cgroupDirs("memory") {
		usage := path.Join(dir, "memory.usage_in_bytes")
		if bytes, ok := h.cgroupNumber(path.Join(dir, "memory.limit_in_bytes")); ok {
			enforce(bytes, path.Join(dir, "memory.limit_in_bytes"), usage)
		}
		if i > 0 {
			continue
		}
		// Only this value includes ancestors above the mounted hierarchy.
		for line := range strings.Lines(string(h.read(path.Join(dir, "memory.stat")))) {
			value, ok := strings.CutPrefix(strings.TrimSpace(line), "hierarchical_memory_limit ")
			if bytes, err := strconv.ParseUint(value, 10, 64); ok && err == nil && bytes < m.Bytes {
				enforce(bytes, path.Join(dir, "memory.stat")+" (hierarchical_memory_limit)", usage)
			}
		}
	}
	return m
}

// slurmMemory returns the memory that the job or step requested, in bytes, and the names of
// the variables. ok is false if there is none: Slurm writes 0 for all memory of the node.
func (h *Host) slurmMemory() (uint64, string, bool) {
	times := func(name, count string) (uint64, string, bool) {
		each, err := strconv.ParseUint(h.getenv(name), 10, 32)
		if err != nil || each == 0 {
			return 0, "", false
		}
		n := uint64(1)
		if count != "" {
			if n, err = strconv.ParseUint(h.getenv(count), 10, 32); err != nil || n == 0 {
				return 0, "", false
			}
			count = " x " + count
		}
		return each * n << 20, name + count, true
	}
	if bytes, source, ok := times("SLURM_MEM_PER_NODE", ""); ok {
		return bytes, source, ok
	}
	if bytes, source, ok := times("SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"); ok {
		return bytes, source, ok
	}
	return times("SLURM_MEM_PER_GPU", "SLURM_GPUS_ON_NODE")
}

// kibibytes parses a value such as "1024 kB", and returns bytes; 0 for other texts.
func kibibytes(value string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(value, "kB")), 10, 54)
	if err != nil {
		return 0
	}
	return n << 10
}
