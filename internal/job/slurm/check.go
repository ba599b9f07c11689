package slurm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/base/probe"
)

// Check returns the results of berth doctor about Slurm: whether it exists, and the
// settings that matter to berth. None is required.
func Check(ctx context.Context, getenv func(string) string, ask Ask) []probe.Result {
	job, inJob := FromEnv(getenv)
	where := "not inside a job"
	if inJob {
		where = fmt.Sprintf("job %s, %s", job.ID, map[Place]string{
			PlaceTask: fmt.Sprintf("task %d of step %d", job.ProcID, job.StepID), PlaceBatch: "batch script", PlaceShell: "shell of salloc"}[job.Place])
	}
	version := probe.Result{Name: "slurm", Title: "Slurm", Level: probe.Optional, OK: probe.Yes}
	config, err := ReadConfig(ctx, ask)
	switch {
	case errors.Is(err, ErrNoSlurm):
		version.OK, version.Found = probe.No, "scontrol is not in PATH; "+where
		version.Cost = "berth runs only on this machine"
		version.Remedy.User = "call berth where srun works, or add Slurm's bin directory to PATH"
		return []probe.Result{version}
	case err != nil:
		version.OK, version.Found = probe.Unknown, err.Error()+"; "+where
		return []probe.Result{version}
	}
	version.Found = fmt.Sprintf("%s, cluster %s; %s", config.Get("SLURM_VERSION"), config.Get("ClusterName"), where)
	results := []probe.Result{version, checkTracking(config), checkTasks(config), checkKillWait(config), checkContainer(config), checkContain(config)}
	if inJob {
		results = append(results, checkTime(ctx, job, ask), checkPlace(job))
	}
	return results
}

// option returns the result of a check of slurm.conf. The cost and the remedy apply
// if the setting is not good.
func option(name, title, found string, good bool, otherwise probe.State, cost, remedy string) probe.Result {
	r := probe.Result{Name: name, Title: title, Level: probe.Optional, OK: probe.Yes, Found: found}
	if !good {
		r.OK, r.Cost, r.Remedy.Admin = otherwise, cost, remedy
	}
	return r
}

func checkTracking(config Config) probe.Result {
	plugin := config.Get("ProctrackType")
	return option("slurm-tracking", "Slurm process tracking", "ProctrackType="+plugin, plugin == "proctrack/cgroup", probe.Degraded,
		"Slurm loses processes that detach themselves; berth's own end with berth all the same",
		"ProctrackType=proctrack/cgroup in slurm.conf")
}

func checkTasks(config Config) probe.Result {
	plugins := config.Get("TaskPlugin")
	return option("slurm-limits", "Slurm limits", "TaskPlugin="+plugins, strings.Contains(plugins, "cgroup"), probe.Degraded,
		"nothing holds a job to its memory and processors; berth keeps to what was asked for by itself",
		"TaskPlugin=task/cgroup,task/affinity in slurm.conf; ConstrainRAMSpace=yes and ConstrainCores=yes in cgroup.conf")
}

func checkKillWait(config Config) probe.Result {
	r := probe.Result{Name: "slurm-killwait", Title: "Slurm KillWait", Level: probe.Optional, OK: probe.Yes, Found: "KillWait=" + config.Get("KillWait")}
	var seconds int
	if _, err := fmt.Sscan(config.Get("KillWait"), &seconds); err != nil {
		r.OK = probe.Unknown
		return r
	}
	if seconds < 3 {
		r.OK = probe.Degraded
		r.Cost = "after scancel there may be no time to remove scratch files; the next berth on the node, or its cleanup, does"
		r.Remedy.Admin = "KillWait=30 in slurm.conf; berth cleanup in the epilog"
	}
	return r
}

func checkContainer(config Config) probe.Result {
	plugin := config.Get("JobContainerType")
	return option("slurm-tmp", "private /tmp of jobs", "JobContainerType="+plugin, strings.Contains(plugin, "tmpfs"), probe.No,
		"after a power failure scratch files stay until the next berth, or berth cleanup, runs on the node",
		"JobContainerType=job_container/tmpfs in slurm.conf, with PrologFlags=Contain and a BasePath on a local disk in job_container.conf")
}

func checkContain(config Config) probe.Result {
	flags := config.Get("PrologFlags")
	return option("slurm-contain", "Slurm PrologFlags", "PrologFlags="+flags+", MpiDefault="+config.Get("MpiDefault"),
		strings.Contains(strings.ToLower(flags), "contain"), probe.Degraded,
		"shells that users open with ssh on a node are outside of their job",
		"PrologFlags=Contain in slurm.conf, and pam_slurm_adopt")
}

// checkTime checks the time that the job has left. berth run uses the same rule.
func checkTime(ctx context.Context, job Job, ask Ask) probe.Result {
	r := probe.Result{Name: "slurm-time", Title: "the job's time", Level: probe.Required, OK: probe.Yes, Found: "no limit"}
	end, err := EndTime(ctx, job, ask)
	if err != nil {
		r.OK, r.Found = probe.Unknown, err.Error()
		return r
	}
	left, enough := Remaining(end, time.Now())
	if !end.IsZero() {
		r.Found = left.String() + " left"
	}
	if !enough {
		r.OK, r.Cost, r.Remedy.User = probe.No, "that is too short for a cluster, so berth run refuses to start one", "ask Slurm for more with --time"
	}
	return r
}

func checkPlace(job Job) probe.Result {
	r := probe.Result{Name: "slurm-place", Title: "place in the job", Level: probe.Optional, OK: probe.Yes,
		Found: fmt.Sprintf("%s on %s; step of %d nodes, job of %d; %d of %d CPUs here", job.Place, job.NodeName, len(job.Nodes), len(job.AllocatedNodes), job.CPUsOnNode, job.AllocatedCPUs)}
	if job.Place == PlaceShell {
		r.OK, r.Found = probe.Degraded, "a shell of salloc, outside of the nodes of its job"
		r.Cost = "this report is about the machine of the shell"
		r.Remedy.User = "srun -N1 -n1 berth doctor"
	}
	return r
}
