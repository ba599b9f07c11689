package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Place is the part of a job that a process runs in.
type Place string

const (
	// PlaceTask is a task of a step, started by srun, possibly beside other tasks.
	PlaceTask Place = "task"
	// PlaceBatch is the batch script, or the shell of salloc on a node (where
	// LaunchParameters has use_interactive_step): one process, on the first
	// node, in charge of the whole allocation.
	PlaceBatch Place = "batch"
	// PlaceShell is a process that salloc started: it holds an allocation but
	// does not run inside it, and often not even on one of its nodes.
	PlaceShell Place = "shell"
)

// Job describes the job, step and task of a process, as Slurm reports them. Numbers
// that Slurm omits are 0, and IDs of missing things are -1.
type Job struct {
	ID string
	// Name and User belong to the job. Cluster is the name that Slurm has for the
	// machine.
	Name, User, Cluster string
	Place               Place
	// Restarts counts the starts of the job that Slurm requeued.
	Restarts int
	// StepID is -1 outside of a step.
	StepID int
	// NodeName is Slurm's name for this node (it need not be the hostname),
	// empty in a shell of salloc.
	NodeName string
	// Nodes holds the nodes of the step, or of the allocation outside of a step.
	// AllocatedNodes always holds the nodes of the allocation.
	Nodes, AllocatedNodes []string
	// Components is the number of components of a heterogeneous job, and 1 for
	// any other job. Outside a step, Nodes lists only one component's nodes.
	Components int
	// Topology maps "switch" and "block" to the name of the one nearest to this
	// node in the network. It is empty if Slurm does not report it.
	Topology map[string]string
	// NodeID is the index of this node in Nodes; -1 in a shell.
	NodeID int
	// ProcID and LocalID are the indexes of the task in the step and on its node,
	// from 0; -1 outside of a step.
	ProcID, LocalID int
	// Tasks is the number of tasks of the step, and TasksOnNode the number on this
	// node (1 outside of a step).
	Tasks, TasksOnNode int
	// CPUsOnNode is the number of CPUs of this node that the step may use;
	// AllocatedCPUs is the number of this node's CPUs allocated to the job.
	CPUsOnNode, AllocatedCPUs int
	// MemoryBytes is the memory requested on this node. It is 0 if the job may use
	// all of it, or if Slurm reports none.
	MemoryBytes uint64
	// GPUs are the indexes of the GPUs of the step, or else of the job, on this
	// node.
	GPUs []string
	// LaunchAddress is the IP address of the host that launched the step.
	LaunchAddress string
	// Partition is the job's partition, SubmitDir the directory of its
	// submission.
	Partition, SubmitDir string
	// End is the end of the job's time. It is zero where the environment does not
	// have it (Slurm before 23.02); see EndTime.
	End time.Time
}

// Here works like FromEnv for this process, with one more check. A batch script
// that was submitted from within a step inherits that step's variables, and looks
// like one of its tasks. The process that slurmd started distinguishes the two.
func Here() (Job, bool) {
	return here(os.Getenv, os.ReadFile)
}

func here(getenv func(string) string, readFile func(string) ([]byte, error)) (Job, bool) {
	if getenv("ENVIRONMENT") == "BATCH" && getenv("SLURM_STEP_ID") != "" {
		command, err := readFile(filepath.Join("/proc", filepath.Base(getenv("SLURM_TASK_PID")), "cmdline"))
		if err == nil && strings.Contains(string(command), "/slurm_script") {
			all := getenv
			getenv = func(name string) string {
				if strings.HasPrefix(name, "SLURM_STEP") || strings.HasPrefix(name, "SLURM_SRUN") {
					return ""
				}
				return all(name)
			}
		}
	}
	return FromEnv(getenv)
}

// FromEnv reads the environment that Slurm gives the processes of a job; ok is
// false outside of a job. If the host list is invalid, Nodes has only this node.
//
// An ssh session that pam_slurm_adopt has put into a job gets only the job's number
// (Slurm 22.05). That is not enough to start a step, so ok is false there.
func FromEnv(getenv func(string) string) (job Job, ok bool) {
	first := func(names ...string) string {
		for _, name := range names {
			if value := getenv(name); value != "" {
				return value
			}
		}
		return ""
	}
	number := func(otherwise int, names ...string) int {
		if n, err := strconv.Atoi(first(names...)); err == nil && n >= 0 {
			return n
		}
		return otherwise
	}
	id := first("SLURM_JOB_ID", "SLURM_JOBID")
	if _, err := strconv.ParseUint(id, 10, 32); err != nil || first("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_HET_SIZE") == "" {
		return Job{}, false
	}
	job = Job{
		ID: id, Name: getenv("SLURM_JOB_NAME"), User: getenv("SLURM_JOB_USER"), Cluster: getenv("SLURM_CLUSTER_NAME"),
		StepID:   number(-1, "SLURM_STEP_ID", "SLURM_STEPID"),
		NodeName: getenv("SLURMD_NODENAME"),
		NodeID:   -1, ProcID: -1, LocalID: -1,
		Restarts: number(0, "SLURM_RESTART_COUNT"),
		Tasks:    1, TasksOnNode: 1,
		Components:    max(1, number(1, "SLURM_HET_SIZE")),
		CPUsOnNode:    number(0, "SLURM_CPUS_ON_NODE"),
		LaunchAddress: getenv("SLURM_LAUNCH_NODE_IPADDR"),
		Partition:     getenv("SLURM_JOB_PARTITION"),
		SubmitDir:     getenv("SLURM_SUBMIT_DIR"),
	}
	job.Place = place(getenv, job)
	job.AllocatedNodes, _ = ExpandHosts(first("SLURM_JOB_NODELIST", "SLURM_NODELIST"))
	job.Nodes = job.AllocatedNodes
	if job.Place == PlaceTask {
		job.ProcID, job.LocalID = number(0, "SLURM_PROCID"), number(0, "SLURM_LOCALID")
		if nodes, err := ExpandHosts(first("SLURM_STEP_NODELIST", "SLURM_NODELIST")); err == nil && len(nodes) > 0 {
			job.Nodes = nodes
		}
		job.NodeID = number(0, "SLURM_NODEID")
		job.Tasks = number(1, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
		job.TasksOnNode = nth(first("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), job.NodeID, 1)
	} else {
		job.StepID = -1
	}
	if job.Place == PlaceBatch {
		job.NodeID = number(0, "SLURM_NODEID")
	}
	if len(job.Nodes) == 0 && job.NodeName != "" {
		job.Nodes, job.AllocatedNodes = []string{job.NodeName}, []string{job.NodeName}
	}
	job.AllocatedCPUs = nth(getenv("SLURM_JOB_CPUS_PER_NODE"), job.allocatedIndex(), 0)
	if job.Place == PlaceShell {
		job.NodeName, job.CPUsOnNode = "", 0
	}
	job.MemoryBytes = memory(getenv, job.CPUsOnNode)
	for gpu := range strings.SplitSeq(first("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"), ",") {
		if gpu != "" {
			job.GPUs = append(job.GPUs, gpu)
		}
	}
	job.Topology = topology(getenv("SLURM_TOPOLOGY_ADDR"), getenv("SLURM_TOPOLOGY_ADDR_PATTERN"))
	if seconds, err := strconv.ParseInt(getenv("SLURM_JOB_END_TIME"), 10, 64); err == nil && seconds > 0 {
		job.End = time.Unix(seconds, 0)
	}
	return job, true
}

// FirstSpecialStep bounds the IDs of steps that srun started. Greater IDs belong to
// the batch script, the extern step and the shell of salloc (slurm.h,
// SLURM_MAX_NORMAL_STEP_ID).
const FirstSpecialStep = 0xfffffff0

// place distinguishes a task, a batch script, and a shell of salloc on another
// host: slurmd sets the node's name, and only a step has its own list of nodes.
func place(getenv func(string) string, job Job) Place {
	switch {
	case job.NodeName == "" && getenv("SLURM_PROCID") == "":
		return PlaceShell
	case job.StepID >= 0 && job.StepID < FirstSpecialStep && getenv("SLURM_STEP_NODELIST") != "":
		return PlaceTask
	}
	return PlaceBatch
}

// InScript reports whether a process of a job runs in the step of the job's batch
// script. Slurm kills that step at once when the script ends, but gives the job's
// other steps time to end. The shell of salloc is no script.
func InScript(job Job, getenv func(string) string) bool {
	return job.Place == PlaceBatch && getenv("ENVIRONMENT") == "BATCH"
}

// IsScript reports whether a process in the step of a batch script has replaced the
// script's shell (exec), instead of being a child of that shell.
func IsScript(getenv func(string) string, pid int) bool {
	return getenv("SLURM_TASK_PID") == strconv.Itoa(pid)
}

// Acts reports whether this process is the one that does the work on its node.
// If a step has several tasks on a node, the others idle.
func (j Job) Acts() bool { return j.LocalID <= 0 }

// topology parses the path from the network's root to this node, such as
// "core.leaf-7.n2" of the pattern "switch.switch.node". The last name of a kind is
// the nearest. If names contain dots, the two differ in length, and topology
// returns nothing.
func topology(address, pattern string) map[string]string {
	names, kinds := strings.Split(address, "."), strings.Split(pattern, ".")
	if len(names) != len(kinds) {
		return nil
	}
	var nearest map[string]string
	for i, kind := range kinds {
		if kind == "node" || kind == "" || names[i] == "" {
			continue
		}
		if nearest == nil {
			nearest = map[string]string{}
		}
		nearest[kind] = names[i]
	}
	return nearest
}

// allocatedIndex returns this node's index in AllocatedNodes, which can differ from
// NodeID, its index in the step.
func (j Job) allocatedIndex() int {
	for i, node := range j.AllocatedNodes {
		if node == j.NodeName {
			return i
		}
	}
	return max(0, j.NodeID)
}

// nth returns the number at index in a list that Slurm compressed, such as
// "4(x2),2" for 4, 4, 2. It returns otherwise if the list is invalid or too short.
func nth(list string, index, otherwise int) int {
	position := 0
	for item := range strings.SplitSeq(list, ",") {
		count, repeat, repeated := strings.Cut(item, "(x")
		value, err := strconv.Atoi(count)
		if err != nil {
			return otherwise
		}
		times := 1
		if repeated {
			if times, err = strconv.Atoi(strings.TrimSuffix(repeat, ")")); err != nil || times < 1 {
				return otherwise
			}
		}
		if index < position+times {
			return value
		}
		position += times
	}
	return otherwise
}

// memory returns the memory requested on this node, in bytes. Slurm counts in MiB.
func memory(getenv func(string) string, cpus int) uint64 {
	if n, err := strconv.ParseUint(getenv("SLURM_MEM_PER_NODE"), 10, 40); err == nil && n > 0 {
		return n << 20
	}
	if n, err := strconv.ParseUint(getenv("SLURM_MEM_PER_CPU"), 10, 40); err == nil && cpus > 0 {
		return n * uint64(cpus) << 20
	}
	return 0
}

// StepSmallerThanAllocation returns a warning if the step may use less of this node
// than the job has, with the srun line that uses all of it. Otherwise it returns an
// empty string. cpus and memory (in bytes, 0 if unknown) are the amounts that the
// process can really use. The mistake is common, because since Slurm 22.05 srun
// ignores the --cpus-per-task of sbatch.
func StepSmallerThanAllocation(job Job, cpus int, memory uint64) string {
	if job.Place != PlaceTask {
		return ""
	}
	var less []string
	line := "srun -N" + strconv.Itoa(len(job.AllocatedNodes)) + " --ntasks-per-node=1"
	if len(job.Nodes) < len(job.AllocatedNodes) {
		less = append(less, fmt.Sprintf("%d of %d nodes", len(job.Nodes), len(job.AllocatedNodes)))
	}
	if job.AllocatedCPUs > 0 && cpus > 0 && cpus < job.AllocatedCPUs {
		less = append(less, fmt.Sprintf("%d of %d CPUs", cpus, job.AllocatedCPUs))
	}
	// A limit up to 5% below the request is ignored: Slurm rounds limits to pages
	// and reserves a little memory for itself.
	if job.MemoryBytes > 0 && memory > 0 && memory+memory/20 < job.MemoryBytes {
		less = append(less, fmt.Sprintf("%d of %d MiB of memory", memory>>20, job.MemoryBytes>>20))
	}
	if len(less) == 0 {
		return ""
	}
	if job.AllocatedCPUs > 0 {
		line += " -c" + strconv.Itoa(job.AllocatedCPUs)
	}
	// --mem=0 means all of the job's memory in a step.
	return fmt.Sprintf("this step may use only %s of what job %s has here; to use all of it: %s --mem=0 berth run ...",
		strings.Join(less, " and "), job.ID, line)
}
