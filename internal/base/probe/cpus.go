package probe

import (
	"fmt"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// CPUs is the number of processors that the process may use.
type CPUs struct {
	// Count is at least 1; a quota that is not a whole number is rounded down.
	Count  int
	Source string
	// Affinity is the number of processors in the affinity mask.
	Affinity int
	// Quota is the smallest cgroup quota in processors, 0 for none.
	Quota float64
}

// CPUs returns the effective number of processors: the smallest of the
// affinity mask (where cpusets show too), the cgroup's quota and Slurm's count
// for this node. Slurm's counts because without a task plugin nothing binds
// the processes.
func (h *Host) CPUs() CPUs {
	c := CPUs{Source: "affinity"}
	affinity, err := h.kernel.Affinity()
	if err != nil || affinity < 1 {
		affinity = runtime.NumCPU()
	}
	c.Affinity, c.Count = affinity, affinity
	if n, err := strconv.Atoi(h.getenv("SLURM_CPUS_ON_NODE")); err == nil && n > 0 && n < c.Count {
		c.Count, c.Source = n, "SLURM_CPUS_ON_NODE"
	}
	limit := func(quota, period float64, source string) {
		if quota <= 0 || period <= 0 {
			return
		}
		if share := quota / period; c.Quota == 0 || share < c.Quota {
			c.Quota = share
			if share < float64(c.Count) {
				c.Count, c.Source = max(1, int(share)), fmt.Sprintf("%s (%.4g)", source, share)
			}
		}
	}
	for _, dir := range h.cgroupDirs("") {
		file := path.Join(dir, "cpu.max") // "max 100000" or "150000 100000"
		if fields := strings.Fields(h.line(file)); len(fields) == 2 {
			quota, err := strconv.ParseFloat(fields[0], 64)
			period, perr := strconv.ParseFloat(fields[1], 64)
			if err == nil && perr == nil {
				limit(quota, period, file)
			}
		}
	}
	for _, dir := range h.cgroupDirs("cpu") {
		file := path.Join(dir, "cpu.cfs_quota_us") // -1 for none
		quota, err := strconv.ParseFloat(h.line(file), 64)
		period, perr := strconv.ParseFloat(h.line(path.Join(dir, "cpu.cfs_period_us")), 64)
		if err == nil && perr == nil {
			limit(quota, period, file)
		}
	}
	return c
}
