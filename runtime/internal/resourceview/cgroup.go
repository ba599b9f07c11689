package resourceview

import (
	"fmt"
	"strconv"
)

// period is the period of a CPU limit in microseconds.
const period = 100_000

// unlimited is the text of version 1 for a missing limit.
const unlimited = "-1\n"

// cgroup returns the files of a cgroup that programs read to size themselves: in
// version 2, and the version 1 files that some programs read instead.
func (v *View) cgroup() map[string]func() string {
	fixed := func(text string) func() string { return func() string { return text + "\n" } }
	bytes := func() string { return fmt.Sprintln(v.Limits().Memory) }
	cpus := func() string { return v.Limits().CPUs.String() + "\n" }
	files := map[string]func() string{
		"cgroup.controllers":     fixed("cpuset cpu memory pids"),
		"cgroup.subtree_control": fixed(""),
		"cgroup.type":            fixed("domain"),
		"memory.max":             bytes,
		"memory.high":            fixed("max"),
		"memory.low":             fixed("0"),
		"memory.min":             fixed("0"),
		"memory.swap.max":        fixed("0"),
		"memory.swap.current":    fixed("0"),
		"cpu.max":                func() string { return v.cpuMax() },
		"cpuset.cpus":            cpus,
		"cpuset.cpus.effective":  cpus,
		"pids.max":               fixed("max"),
	}
	if v.Usage != nil {
		files["memory.current"] = func() string { return fmt.Sprintln(v.Usage().charged()) }
		files["memory.stat"] = v.memoryStat
		files["cpu.stat"] = v.cpuStat
		files["pids.current"] = func() string { return fmt.Sprintln(v.Usage().Threads) }
	}
	if !v.Version1 {
		return files
	}
	files["memory/memory.limit_in_bytes"] = bytes
	files["memory/memory.soft_limit_in_bytes"] = bytes
	files["cpu/cpu.cfs_period_us"] = fixed(strconv.Itoa(period))
	files["cpu/cpu.cfs_quota_us"] = func() string { return v.quota(unlimited) }
	files["cpuset/cpuset.cpus"] = cpus
	files["cpuset/cpuset.effective_cpus"] = cpus
	if v.Usage != nil {
		files["memory/memory.usage_in_bytes"] = files["memory.current"]
		files["memory/memory.stat"] = func() string { return v.memoryStat() + v.memoryStat1() }
		files["cpuacct/cpuacct.usage"] = func() string {
			u := v.Usage()
			return fmt.Sprintln((u.User + u.System).Nanoseconds())
		}
	}
	return files
}

func (v *View) cpuMax() string {
	quota := v.quota("max\n")
	return quota[:len(quota)-1] + " " + strconv.Itoa(period) + "\n"
}

// quota returns a line with the time that the container may run in a period, in microseconds.
// It returns none for a container without a CPU limit.
func (v *View) quota(none string) string {
	milli := v.Limits().MilliCPU
	if milli == 0 {
		return none
	}
	return fmt.Sprintln(milli * period / 1000)
}

func (v *View) memoryStat() string {
	u := v.Usage()
	return fmt.Sprintf("anon %d\nfile %d\nkernel 0\npagetables %d\nshmem %d\nfile_mapped %d\ninactive_anon %d\nactive_anon %d\ninactive_file 0\nactive_file 0\nslab 0\npgfault %d\npgmajfault %d\n",
		u.Anonymous, u.Shared, u.PageTables, u.Shared, u.Mapped, u.Shared, u.Anonymous, u.Faults, u.MajorFaults)
}

// memoryStat1 adds the names that only version 1 has.
func (v *View) memoryStat1() string {
	u, limit := v.Usage(), v.Limits().Memory
	return fmt.Sprintf("cache %d\nrss %d\nmapped_file %d\nhierarchical_memory_limit %d\ntotal_cache %d\ntotal_rss %d\ntotal_shmem %d\ntotal_inactive_file 0\ntotal_active_file 0\n",
		u.Shared, u.Anonymous, u.Mapped, limit, u.Shared, u.Anonymous, u.Shared)
}

func (v *View) cpuStat() string {
	u := v.Usage()
	return fmt.Sprintf("usage_usec %d\nuser_usec %d\nsystem_usec %d\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
		(u.User + u.System).Microseconds(), u.User.Microseconds(), u.System.Microseconds())
}
