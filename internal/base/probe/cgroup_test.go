package probe

import (
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

const (
	jobV2    = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"
	v2job    = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_4711"
	jobV1    = "9:freezer:/slurm/uid_1000/job_8/step_0\n7:cpu,cpuacct:/slurm/uid_1000/job_8/step_0/task_0\n6:memory:/slurm/uid_1000/job_8/step_0/task_0\n1:name=systemd:/system.slice/slurmd.service\n0::/system.slice/slurmd.service\n"
	v1memory = "/sys/fs/cgroup/memory/slurm/uid_1000/job_8"
	session  = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope\n"
	scope    = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"
	meminfo  = "MemTotal:       263852000 kB\nMemFree:        100 kB\nMemAvailable:   200000000 kB\n"
)

// with returns files with others on top.
func with(files map[string]string, more ...string) map[string]string {
	all := map[string]string{"/proc/meminfo": meminfo}
	for name, content := range files {
		all[name] = content
	}
	for i := 0; i+1 < len(more); i += 2 {
		all[more[i]] = more[i+1]
	}
	return all
}

func rhel9(t testing.TB, cgroup string, more ...string) map[string]string {
	return with(map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.rhel9-job"), "/proc/self/cgroup": cgroup}, more...)
}

func TestCgroup(t *testing.T) {
	delegated := []string{scope, scope + "/cgroup.procs", scope + "/cgroup.subtree_control"}
	task := v2job + "/step_0/user/task_0"
	tests := []struct {
		name     string
		machine  machine
		layout   string
		reason   string // empty for delegated
		wantPath string
	}{
		{"slurm v2 job", machine{files: rhel9(t, jobV2, v2job+"/step_0/user/task_0/cgroup.controllers", "cpuset cpu io memory pids\n", v2job+"/step_0/user/task_0/cgroup.type", "domain\n")},
			"v2", "not writable", v2job + "/step_0/user/task_0"},
		{"slurm v2 job whose group is the user's", machine{files: rhel9(t, jobV2, task+"/cgroup.controllers", "cpu memory\n", task+"/cgroup.type", "domain\n"),
			writable: []string{task, task + "/cgroup.procs", task + "/cgroup.subtree_control"}},
			"v2", "Slurm task", task},
		{"session of root's", machine{files: rhel9(t, session, scope+"/cgroup.controllers", "cpu memory pids\n", scope+"/cgroup.type", "domain\n")},
			"v2", "not writable", scope},
		{"delegated scope", machine{files: rhel9(t, session, scope+"/cgroup.controllers", "cpu memory pids\n", scope+"/cgroup.type", "domain\n"), writable: delegated},
			"v2", "", scope},
		{"delegated without cpu", machine{files: rhel9(t, session, scope+"/cgroup.controllers", "memory pids\n", scope+"/cgroup.type", "domain\n"), writable: delegated},
			"v2", "lacks the memory or cpu controller", scope},
		{"threaded", machine{files: rhel9(t, session, scope+"/cgroup.controllers", "cpu memory\n", scope+"/cgroup.type", "threaded\n"), writable: delegated},
			"v2", "of type threaded", scope},
		{"procs not writable", machine{files: rhel9(t, session, scope+"/cgroup.controllers", "cpu memory\n", scope+"/cgroup.type", "domain\n"), writable: delegated[:1]},
			"v2", "cgroup.procs", scope},
		{"root group", machine{files: rhel9(t, "0::/\n"), writable: []string{"/sys/fs/cgroup"}}, "v2", "root group", "/sys/fs/cgroup"},
		{"hybrid", machine{files: with(map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.debian12-v1-job"), "/proc/self/cgroup": jobV1})},
			"hybrid", "hybrid", "/sys/fs/cgroup/unified/system.slice/slurmd.service"},
		{"nothing mounted", machine{files: map[string]string{"/proc/self/cgroup": jobV2}}, "v2", "no cgroup v2", ""},
		{"no cgroups", machine{}, "none", "no cgroup v2", ""},
		{"outside of the namespace", machine{files: rhel9(t, "0::/../../other\n")}, "v2", "outside", "/sys/fs/cgroup"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := test.machine.host().Cgroup()
			if got.Layout != test.layout || got.Path != test.wantPath || got.Delegated != (test.reason == "") || !strings.Contains(got.Reason, test.reason) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestMemory(t *testing.T) {
	const gib = 1 << 30
	v1files := map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.debian12-v1-job"), "/proc/self/cgroup": jobV1}
	tests := []struct {
		name     string
		machine  machine
		bytes    uint64
		source   string
		enforced bool
		usage    string
	}{
		{"no limit", machine{files: rhel9(t, jobV2)}, 263852000 << 10, "physical memory", false, ""},
		{"v2 limit of the job", machine{files: rhel9(t, jobV2, v2job+"/memory.max", "8589934592\n", v2job+"/step_0/memory.max", "max\n")},
			8 * gib, v2job + "/memory.max", true, v2job + "/memory.current"},
		{"v2 smaller limit of the step", machine{files: rhel9(t, jobV2, v2job+"/memory.max", "8589934592\n", v2job+"/step_0/user/memory.max", "4294967296\n")},
			4 * gib, v2job + "/step_0/user/memory.max", true, v2job + "/step_0/user/memory.current"},
		{"v2 high", machine{files: rhel9(t, jobV2, v2job+"/memory.max", "8589934592\n", v2job+"/memory.high", "4294967296\n")},
			4 * gib, v2job + "/memory.high", true, v2job + "/memory.current"},
		{"v1", machine{files: with(v1files, v1memory+"/memory.limit_in_bytes", "2147483648\n", v1memory+"/step_0/memory.limit_in_bytes", "9223372036854771712\n")},
			2 * gib, v1memory + "/memory.limit_in_bytes", true, v1memory + "/memory.usage_in_bytes"},
		{"v1 ancestor out of sight", machine{files: with(v1files, v1memory+"/step_0/task_0/memory.limit_in_bytes", "9223372036854771712\n",
			v1memory+"/step_0/task_0/memory.stat", "cache 0\nhierarchical_memory_limit 1073741824\nhierarchical_memsw_limit 1\n")},
			gib, v1memory + "/step_0/task_0/memory.stat (hierarchical_memory_limit)", true, v1memory + "/step_0/task_0/memory.usage_in_bytes"},
		{"slurm only", machine{files: rhel9(t, session), env: map[string]string{"SLURM_MEM_PER_NODE": "2048"}}, 2 * gib, "SLURM_MEM_PER_NODE", false, ""},
		{"slurm per cpu", machine{files: rhel9(t, session), env: map[string]string{"SLURM_MEM_PER_CPU": "512", "SLURM_CPUS_ON_NODE": "4"}}, 2 * gib, "SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE", false, ""},
		{"slurm all of the node", machine{files: rhel9(t, session), env: map[string]string{"SLURM_MEM_PER_NODE": "0"}}, 263852000 << 10, "physical memory", false, ""},
		{"cgroup and slurm agree", machine{files: rhel9(t, jobV2, v2job+"/memory.max", "2147483648\n"), env: map[string]string{"SLURM_MEM_PER_NODE": "2048"}}, 2 * gib, v2job + "/memory.max", true, v2job + "/memory.current"},
		{"nonsense", machine{files: rhel9(t, jobV2, v2job+"/memory.max", "x\n"), env: map[string]string{"SLURM_MEM_PER_NODE": "-5", "SLURM_MEM_PER_CPU": "many"}}, 263852000 << 10, "physical memory", false, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := test.machine.host().Memory()
			if got.Bytes != test.bytes || got.Source != test.source || got.Enforced != test.enforced || got.UsageFile != test.usage {
				t.Errorf("got %+v", got)
			}
			if got.Available != 200000000<<10 {
				t.Errorf("available %d", got.Available)
			}
		})
	}
}

func TestCPUs(t *testing.T) {
	cpuV1 := "/sys/fs/cgroup/cpu,cpuacct/slurm/uid_1000/job_8"
	tests := []struct {
		name    string
		machine machine
		count   int
		source  string
	}{
		{"affinity", machine{files: rhel9(t, jobV2), affinity: 16}, 16, "affinity"},
		{"slurm without task plugin", machine{files: rhel9(t, jobV2), affinity: 64, env: map[string]string{"SLURM_CPUS_ON_NODE": "4"}}, 4, "SLURM_CPUS_ON_NODE"},
		{"affinity below slurm", machine{files: rhel9(t, jobV2), affinity: 2, env: map[string]string{"SLURM_CPUS_ON_NODE": "4"}}, 2, "affinity"},
		{"v2 quota", machine{files: rhel9(t, jobV2, v2job+"/cpu.max", "250000 100000\n"), affinity: 8}, 2, v2job + "/cpu.max (2.5)"},
		{"v2 quota below one", machine{files: rhel9(t, jobV2, v2job+"/cpu.max", "50000 100000\n"), affinity: 8}, 1, v2job + "/cpu.max (0.5)"},
		{"v2 no quota", machine{files: rhel9(t, jobV2, v2job+"/cpu.max", "max 100000\n"), affinity: 8}, 8, "affinity"},
		{"v1 quota", machine{files: with(map[string]string{"/proc/self/mountinfo": testFile(t, "mountinfo.debian12-v1-job"), "/proc/self/cgroup": jobV1},
			cpuV1+"/cpu.cfs_quota_us", "300000\n", cpuV1+"/cpu.cfs_period_us", "100000\n", cpuV1+"/step_0/cpu.cfs_quota_us", "-1\n"), affinity: 8}, 3, cpuV1 + "/cpu.cfs_quota_us (3)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.machine.host().CPUs(); got.Count != test.count || got.Source != test.source {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestContainerSeesItsCgroupAsRoot(t *testing.T) {
	mount := "30 24 0:27 /kubepods/pod1 /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	h := machine{files: map[string]string{"/proc/self/mountinfo": mount, "/proc/self/cgroup": "0::/kubepods/pod1/c1\n"}}.host()
	if got, want := h.cgroupDirs(""), []string{"/sys/fs/cgroup/c1", "/sys/fs/cgroup"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzParseCgroup(f *testing.F) {
	f.Add([]byte(jobV1))
	f.Add([]byte(jobV2))
	f.Add([]byte("0::/../..\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		fuzzbound.Watch(t)
		h := machine{files: map[string]string{"/proc/self/mountinfo": "30 24 0:27 /a /sys/fs/cgroup rw - cgroup2 c rw\n", "/proc/self/cgroup": string(content)}}.host()
		for _, dir := range h.cgroupDirs("") {
			if !within(dir, "/sys/fs/cgroup") {
				t.Errorf("%q leads to %s", content, dir)
			}
		}
		h.Cgroup()
		h.Memory()
		h.CPUs()
	})
}
