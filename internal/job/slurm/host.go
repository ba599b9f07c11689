package slurm

import (
	"context"
	"os"
	"strconv"
	"strings"
	"time"
)

// configLimit bounds the question whether Slurm's commands have a configuration.
// They read it from a file in milliseconds.
const configLimit = 500 * time.Millisecond

// configFiles are the usual places of slurm.conf: the default, Debian's former
// one, and the copy that a slurmd or sackd gets from the controller.
var configFiles = []string{"/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf"}

// OnCluster reports whether this host belongs to a Slurm cluster, as a login host
// or a compute node does: Slurm's configuration is here. It does not ask the controller,
// so it returns the same while the controller is down. It returns false if scontrol does
// not answer within half a second.
func OnCluster(ctx context.Context, getenv func(string) string) bool {
	return onCluster(ctx, append([]string{getenv("SLURM_CONF")}, configFiles...), func(ctx context.Context, command ...string) ([]byte, error) {
		return askWithin(ctx, nil, configLimit, command...)
	})
}

func onCluster(ctx context.Context, files []string, ask Ask) bool {
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			return true
		}
	}
	// A site may have built Slurm with other paths. scontrol answers this from the
	// configuration, and fails if there is none (22.05).
	_, err := ask(ctx, "scontrol", "show", "hostnames", "localhost")
	return err == nil
}

// AdoptedBy returns the job whose control groups contain this process, or 0. These
// are a job's own processes, and ssh sessions that pam_slurm_adopt has put into a
// job. Such a session may lack the job's environment.
func AdoptedBy() uint32 {
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	return JobOfGroups(string(groups))
}

// JobOfGroups reads the job from the /proc/PID/cgroup of a process in one of the
// job's control groups. It returns 0 for other processes. Slurm's paths end in
// uid_1000/job_7/step_extern/task_4294967295 with cgroup v1, and in
// job_7/step_extern/user/task_special with cgroup v2.
func JobOfGroups(groups string) uint32 {
	for part := range strings.FieldsFuncSeq(groups, func(r rune) bool { return r == '/' || r == '\n' }) {
		text, named := strings.CutPrefix(part, "job_")
		if job, err := strconv.ParseUint(text, 10, 32); named && err == nil {
			return uint32(job)
		}
	}
	return 0
}
