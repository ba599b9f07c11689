package probe

import (
	"math"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// namespaceLimits sets each limit of namespaces to 100,000 but one.
func namespaceLimits(name, value string) map[string]string {
	files := sysctls("user.max_mnt_namespaces", "100000", "user.max_pid_namespaces", "100000", "user.max_net_namespaces", "100000",
		"user.max_ipc_namespaces", "100000", "user.max_uts_namespaces", "100000", "user.max_cgroup_namespaces", "100000")
	files["/proc/sys/"+strings.ReplaceAll(name, ".", "/")] = value + "\n"
	return files
}

func TestPodCapacity(t *testing.T) {
	busy := map[string]string{"/proc/7/status": "Uid:\t1000\t1000\t1000\t1000\nThreads:\t600\n"}
	job := func(files map[string]string) machine {
		return machine{files: files, limits: map[int]uint64{unix.RLIMIT_NPROC: math.MaxUint64}, env: map[string]string{"SLURM_JOB_ID": "1"}}
	}
	delegated := func(files map[string]string) machine {
		m := job(rhel9(t, session, scope+"/cgroup.controllers", "cpu memory pids\n", scope+"/cgroup.type", "domain\n"))
		for name, content := range files {
			m.files[name] = content
		}
		m.writable = []string{scope, scope + "/cgroup.procs", scope + "/cgroup.subtree_control"}
		return m
	}
	inotify := func(limit string) map[string]string {
		return with(sysctls("fs.inotify.max_user_instances", limit), "/proc/7/fd/3", "-> anon_inode:inotify")
	}
	for _, test := range []struct {
		name    string
		machine machine
		nodes   int
		pods    int
		limit   string
		remedy  string
	}{
		{"nothing limits", job(nil), 1, MaxPods, "", ""},
		{"no nodes per host", job(nil), 0, MaxPods, "", ""},
		{"processes of a user", machine{files: busy, limits: map[int]uint64{unix.RLIMIT_NPROC: 1900}}, 1, (1900 - 600 - 200) / 11, "limit 1900 for each user, in use 600", "nproc"},
		{"of which several nodes take", machine{files: busy, limits: map[int]uint64{unix.RLIMIT_NPROC: 1900}}, 2, ((1900-600)/2 - 200) / 11, "limit 1900", "nproc"},
		{"no room at all", machine{files: busy, limits: map[int]uint64{unix.RLIMIT_NPROC: 700}}, 1, 0, "limit 700", "nproc"},
		// With such a limit, the user's processes are not counted.
		{"many processes", machine{files: busy, limits: map[int]uint64{unix.RLIMIT_NPROC: 30000}}, 1, MaxPods, "", ""},
		{"the machine", job(with(sysctls("kernel.pid_max", "2000"), "/proc/loadavg", "0.20 0.18 0.12 1/700 11206\n")), 1, (2000 - 700 - 200) / 11, "kernel.pid_max is 2000 for the whole machine", "pid_max"},
		{"the job's control group", job(rhel9(t, jobV2, v2job+"/pids.max", "1024\n", v2job+"/pids.current", "24\n")), 1, (1000 - 200) / 11, "pids.max is 1024", "TasksMax"},
		{"network namespaces", job(with(namespaceLimits("user.max_net_namespaces", "60"), "/proc/self/ns/net", "-> net:[1]", "/proc/7/ns/net", "-> net:[1]",
			"/proc/8/ns/net", "-> net:[2]", "/proc/9/ns/net", "-> net:[2]", "/proc/10/ns/net", "-> net:[3]")), 1, 60 - 2 - 2, "user.max_net_namespaces is 60 for each user, in use 2", "user.max_net_namespaces=100000"},
		{"two mount namespaces for each pod", job(namespaceLimits("user.max_mnt_namespaces", "104")), 1, 50, "user.max_mnt_namespaces is 104", "mnt"},
		{"watches of memory", delegated(inotify("128")), 1, (128 - 1 - 17) / 2, "fs.inotify.max_user_instances is 128 for each user, in use 1", "max_user_instances=8192"},
		{"watches of memory on several nodes", delegated(inotify("128")), 2, (127/2 - 17) / 2, "max_user_instances is 128", "max_user_instances=8192"},
		{"hardly any watches of memory", delegated(inotify("10")), 1, 1, "max_user_instances is 10", "max_user_instances=8192"},
		{"many watches of memory", delegated(inotify("8192")), 1, MaxPods, "", ""},
		{"nothing to watch without delegation", job(inotify("128")), 1, MaxPods, "", ""},
		{"no network namespace", job(namespaceLimits("user.max_net_namespaces", "0")), 1, 0, "user.max_net_namespaces is 0", "net"},
	} {
		t.Run(test.name, func(t *testing.T) {
			capacity := test.machine.host().PodCapacity(test.nodes)
			if capacity.Pods != test.pods || !strings.Contains(capacity.Limit, test.limit) || !strings.Contains(capacity.Remedy.Admin, test.remedy) {
				t.Errorf("got %+v, want %d pods, %q, %q", capacity, test.pods, test.limit, test.remedy)
			}
			r := checkPods(test.machine.host())
			if test.nodes == 1 && (r.OK == Yes) != (test.pods == MaxPods) || r.OK == No != (r.Level == Required) {
				t.Errorf("doctor answers %+v", r)
			}
		})
	}
}
