package slurm

import (
	"slices"
	"strings"
)

// IntoCommand returns the srun command line that runs a program once, on one
// node of a running job, beside other steps. An empty node means the first node
// of the job. The program's standard output is unbuffered (--unbuffered), and
// the step takes no resources from other steps. In a heterogeneous job the node
// belongs to the first component, whose number is the job's number.
func IntoCommand(job, node string, heterogeneous bool, program ...string) []string {
	command := []string{
		"srun", "--jobid=" + job, "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--gres=none",
		"--mpi=none", "--cpu-bind=none", "--chdir=/", "--job-name=" + intoStep, "--unbuffered", "--quiet",
	}
	if node != "" {
		command = append(command, "--nodelist="+node)
	}
	if heterogeneous {
		command = append(command, "--het-group=0")
	}
	return append(command, program...)
}

// UseCommand returns the srun command line that runs a program once on one node of
// a running job, from outside of it, with all that the job has there; streams and
// Ctrl-C are as with StepCommand. The environment is that of IntoEnv.
func UseCommand(job, node string, heterogeneous bool, program ...string) []string {
	command := []string{
		"srun", "--jobid=" + job, "--overlap", "--nodes=1", "--nodelist=" + node, "--ntasks=1", "--mem=0", "--unbuffered", "--disable-status",
	}
	if heterogeneous {
		command = append(command, "--het-group=0")
	}
	return append(command, program...)
}

// IsHeterogeneous reports whether srun's output refuses a command of IntoCommand
// because the job is heterogeneous.
func IsHeterogeneous(said string) bool { return strings.Contains(said, "hetjob components") }

// intoStep is the name of the steps of IntoCommand.
const intoStep = "berth-tunnel"

// IntoEnv returns env for IntoCommand. It omits Slurm's variables of the job that
// the caller itself may be in, and options for srun. It keeps the name of the
// cluster and the place of its configuration.
func IntoEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		switch name {
		case "SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_CONF_SERVER":
			return false
		}
		prefixes := []string{"SLURM_", "SLURMD_", "SRUN_", "SALLOC_", "SBATCH_"}
		return slices.ContainsFunc(prefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
}
