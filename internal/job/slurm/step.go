package slurm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const gpusPerTask = "SLURM_GPUS_PER_TASK"

// stepSettings lists variables that describe the allocation, and that srun would
// apply to the step. srun refuses some of them in combination.
var stepSettings = []string{
	"SLURM_MEM_PER_", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_TASKS_PER_NODE", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK",
	"SLURM_TRES_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_CPU_BIND", "SLURM_EXACT", "SLURM_EXCLUSIVE", "SLURM_OVERLAP",
	"SLURM_HINT", "SLURM_THREADS_PER_CORE", // either gives each task its own processors only
	"SLURM_NNODES", "SLURM_NODES_ALIASES", gpusPerTask, "SLURM_KILL_BAD_EXIT", "SLURM_WAIT", "SLURM_INPUTMODE", "SLURM_OUTPUTMODE",
	"SLURM_EXPORT_ENV", // the program has the environment that it has now
}

// StepCommand returns the srun command line that runs a program once on every
// node of the allocation, with all resources that the allocation has there:
//
//   - beside other steps, which may have the same processors (--overlap);
//   - with all processors, because neither --exact nor a number of them is
//     given, and all memory of the job (--mem=0);
//   - over all components of a heterogeneous job, as one step;
//   - the end of one task, or of a node, ends no other (--kill-on-bad-exit=0,
//     --wait=0, --no-kill);
//   - under the given name, unless that is empty;
//   - only the first task reads standard input, unless allRead is set, and
//     output is not held back;
//   - the first Ctrl-C reaches the program (--disable-status), instead of
//     making srun print the state of its tasks.
func StepCommand(job Job, name string, allRead bool, program ...string) []string {
	command := []string{"srun"}
	if job.Components > 1 {
		command = append(command, fmt.Sprintf("--het-group=0-%d", job.Components-1))
	} else {
		command = append(command, fmt.Sprintf("--nodes=%d", len(job.AllocatedNodes)))
	}
	command = append(command,
		"--ntasks-per-node=1", "--overlap", "--mem=0",
		"--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--unbuffered", "--disable-status")
	if name != "" {
		command = append(command, "--job-name="+name)
	}
	if allRead {
		command = append(command, "--input=all")
	} else {
		command = append(command, "--input=0")
	}
	return append(command, program...)
}

// NodeStepCommand returns the srun command line that runs a program once on one node
// of this process's allocation, with all resources of the allocation on that node.
// Name, streams and Ctrl-C work as with StepCommand.
func NodeStepCommand(job Job, node, name string, program ...string) []string {
	command := []string{"srun"}
	if job.Components > 1 {
		command = append(command, "--het-group=0")
	}
	return append(append(command, "--nodes=1", "--nodelist="+node, "--ntasks=1", "--overlap", "--mem=0", "--unbuffered", "--disable-status", "--job-name="+name), program...)
}

// StepEnv returns env without variables that would change the step of StepCommand.
func StepEnv(env []string) []string {
	step := slices.DeleteFunc(slices.Clone(env), func(entry string) bool {
		return slices.ContainsFunc(stepSettings, func(prefix string) bool { return strings.HasPrefix(entry, prefix) })
	})
	if gpus := gpusOfNode(env); gpus != "" {
		step = append(step, "SLURM_GPUS_PER_NODE="+gpus)
	}
	return step
}

// gpusOfNode returns the GPUs on each node of an allocation that was made for a number
// of GPUs per task, as --gpus-per-node takes them. Without this option, Slurm gives the
// step the GPUs of one task. It is empty for other allocations, and where nodes have
// different numbers of tasks: no option of srun describes that.
func gpusOfNode(env []string) string {
	value := func(name string) string {
		_, value := lookup(env, name)
		return value
	}
	perNode := value("SLURM_TASKS_PER_NODE") // 2(x3),1 on four nodes
	first, _, _ := strings.Cut(perNode, "(x")
	tasks, err := strconv.Atoi(first)
	if err != nil || strings.Contains(perNode, ",") || value(gpusPerTask) == "" || value("SLURM_GPUS_PER_NODE") != "" || value("SLURM_HET_SIZE") != "" {
		return ""
	}
	var all []string
	for gpus := range strings.SplitSeq(value(gpusPerTask), ",") {
		kind, count := "", gpus
		if at := strings.LastIndex(gpus, ":"); at >= 0 {
			kind, count = gpus[:at+1], gpus[at+1:]
		}
		number, err := strconv.Atoi(count)
		if err != nil {
			kind, number = gpus+":", 1 // only a kind
		}
		all = append(all, kind+strconv.Itoa(number*tasks))
	}
	return strings.Join(all, ",")
}

// scriptVariable holds Slurm's variables of the batch script whose shell started
// the step.
const scriptVariable = "BERTH_SCRIPT_ENV"

// KeepScriptEnv returns stepEnv with the batch script's variables for ScriptEnv.
// env is the environment of the script.
func KeepScriptEnv(stepEnv, env []string) []string {
	var kept []string
	for _, entry := range env {
		if isSlurm(entry) {
			kept = append(kept, entry)
		}
	}
	text, _ := json.Marshal(kept) // strings can always be written
	return append(stepEnv, scriptVariable+"="+string(text))
}

// ScriptEnv returns the environment for a program of the user. It is env, but a
// program in the step of a batch script gets the script's variables of Slurm
// instead of the step's. With the step's, which has one task, srun and mpirun
// would start one task.
func ScriptEnv(env []string) []string {
	at, value := lookup(env, scriptVariable)
	if at < 0 {
		return env
	}
	var kept []string
	if json.Unmarshal([]byte(value), &kept) != nil {
		return env
	}
	rest := slices.DeleteFunc(slices.Delete(slices.Clone(env), at, at+1), isSlurm)
	return append(rest, kept...)
}

func isSlurm(entry string) bool {
	return strings.HasPrefix(entry, "SLURM_") || strings.HasPrefix(entry, "SLURMD_") || strings.HasPrefix(entry, "SRUN_")
}

// lookup returns the index and the value of a variable in env. Without it the index is -1.
func lookup(env []string, name string) (at int, value string) {
	at = slices.IndexFunc(env, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
	if at >= 0 {
		value = env[at][len(name)+1:]
	}
	return at, value
}
