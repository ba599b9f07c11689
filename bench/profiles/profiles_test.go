package profiles_test

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/bench/profiles"
)

// TestProfiles: the study's profiles exist, and each names its author.
func TestProfiles(t *testing.T) {
	for _, name := range []string{
		"default", "kernel-optimizations", "nic-optimizations", "accelerator-performance", "hpc-compute", "latency-performance", "network-latency",
		"network-throughput",
	} {
		if p, err := profiles.Read(name); err != nil || p.From == "" {
			t.Errorf("%s: %+v, %v", name, p, err)
		}
	}
	for _, name := range profiles.Names() {
		if _, err := profiles.Read(name); err != nil {
			t.Error(err)
		}
	}
	p, err := profiles.Read("network-latency")
	if err != nil || p.Sysctls["net.core.busy_read"] != "50" || p.Sysctls["vm.dirty_ratio"] != "10" || p.Wake == nil || *p.Wake != 3 || len(p.LeftOut) != 1 {
		t.Errorf("what it includes is not in it: %+v, %v", p, err)
	}
	all := profiles.Paths()
	for _, want := range []string{"/proc/sys/net/core/rmem_max", "/proc/sys/vm/swappiness", "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "/sys/devices/system/cpu/intel_pstate/min_perf_pct"} {
		if !slices.Contains(all, want) {
			t.Errorf("%s is none of %v", want, all)
		}
	}
	settings := p.Settings()
	if settings["net/core/busy_read"] != "50" || settings["kernel/mm/transparent_hugepage/enabled"] != "never" || settings["devices/system/cpu/cpu0/cpufreq/scaling_governor"] != "performance" {
		t.Errorf("got %v", settings)
	}
	if p, err = profiles.Read("nic-optimizations"); err != nil || p.Settings()["rx ring"] != "4096" || p.Settings()["gro"] != "on" {
		t.Errorf("got %v, %v", p.Settings(), err)
	}
	if _, err := profiles.Read("none"); err == nil || !strings.Contains(err.Error(), "kernel-optimizations") {
		t.Errorf("got %v", err)
	}
}
