package step

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/profiles"
)

// settings lists kernel settings that affect figures, besides the profiles'
// settings.
var settings = []string{ //nolint:gochecknoglobals // a constant
	"/proc/sys/net/ipv4/tcp_congestion_control", "/proc/sys/kernel/sched_autogroup_enabled",
	"/sys/kernel/mm/transparent_hugepage/enabled", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
	"/sys/devices/system/cpu/smt/active",
}

// inspect describes this machine. It omits what it cannot read.
func inspect() record.Machine {
	m := record.Machine{Load: load(), Settings: map[string]string{}}
	if m.Name = os.Getenv("SLURMD_NODENAME"); m.Name == "" {
		m.Name, _ = os.Hostname()
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	for line := range strings.Lines(read("/etc/os-release")) {
		if value, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			m.System = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "processor":
			m.CPUs++ // all of the machine's; a step may have fewer
		case "model name":
			m.CPU = strings.TrimSpace(value)
		case "flags":
			m.Hypervisor = strings.Contains(" "+value+" ", " hypervisor ")
		}
	}
	if fields := strings.Fields(read("/proc/meminfo")); len(fields) > 1 {
		if kilobytes, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			m.Memory = kilobytes * 1024
		}
	}
	// A disk may report data as written that is still in the disk's cache.
	caches, err := filepath.Glob("/sys/block/*/queue/write_cache")
	if err != nil {
		caches = nil
	}
	for _, path := range slices.Concat(settings, profiles.Paths(), caches) {
		if value := strings.TrimSpace(read(path)); value != "" {
			m.Settings[strings.TrimPrefix(strings.TrimPrefix(path, "/proc/sys/"), "/sys/")] = value
		}
	}
	m.Boot = strings.TrimSpace(read("/proc/sys/kernel/random/boot_id"))
	maps.Copy(m.Settings, links())
	// Pods have another MPI, that of their image.
	if out, err := exec.Command("mpirun", "--version").Output(); err == nil {
		m.Settings["mpirun"], _, _ = strings.Cut(string(out), "\n")
	}
	return m
}

func read(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return string(content)
}
