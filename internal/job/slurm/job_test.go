package slurm

import (
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

// environment reads a file of variables, with others on top. The files were
// taken from jobs of Slurm 22.05.8.
func environment(t *testing.T, name string, more ...string) func(string) string {
	t.Helper()
	content, err := os.ReadFile("testdata/" + name + ".env")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, line := range append(strings.Split(string(content), "\n"), more...) {
		key, value, _ := strings.Cut(line, "=")
		values[key] = value
	}
	return func(name string) string { return values[name] }
}

func TestInScript(t *testing.T) {
	for env, want := range map[string]bool{"batch": true, "step-in-batch": false, "task": false, "salloc": false, "salloc-on-node": false} {
		getenv := environment(t, env)
		job, _ := FromEnv(getenv)
		if got := InScript(job, getenv); got != want {
			t.Errorf("%s: %v, want %v", env, got, want)
		}
	}
	getenv := environment(t, "batch")
	if !IsScript(getenv, 127) || IsScript(getenv, 200) {
		t.Errorf("process 127 is the script: %v, process 200 is: %v", IsScript(getenv, 127), IsScript(getenv, 200))
	}
}

func TestFromEnv(t *testing.T) {
	both, one := []string{"n1", "n2"}, []string{"n1"}
	tests := []struct {
		env  string
		more []string
		want Job
	}{
		{"task", []string{"SLURM_STEP_GPUS=0,3", "SLURM_JOB_END_TIME=1790000000", "SLURM_HET_SIZE=2",
			"SLURM_TOPOLOGY_ADDR=core.leaf-7.n2", "SLURM_TOPOLOGY_ADDR_PATTERN=switch.switch.node"}, Job{ID: "1", Name: "sh", User: "alice", Cluster: "bed", Place: PlaceTask, StepID: 0, NodeName: "n2",
			Nodes: both, AllocatedNodes: both, Components: 2, Topology: map[string]string{"switch": "leaf-7"}, NodeID: 1, ProcID: 3, LocalID: 1, Tasks: 4, TasksOnNode: 2, CPUsOnNode: 2, AllocatedCPUs: 2,
			GPUs: []string{"0", "3"}, LaunchAddress: "10.138.0.2", Partition: "main", SubmitDir: "/tmp", End: time.Unix(1790000000, 0)}},
		{"batch", nil, Job{ID: "2", Name: "wrap", User: "alice", Cluster: "bed", Place: PlaceBatch, StepID: -1, NodeName: "n1",
			Nodes: both, AllocatedNodes: both, Components: 1, NodeID: 0, ProcID: -1, LocalID: -1, Tasks: 1, TasksOnNode: 1, CPUsOnNode: 3, AllocatedCPUs: 3,
			MemoryBytes: 700 << 20, Partition: "main", SubmitDir: "/tmp"}},
		{"step-in-batch", nil, Job{ID: "2", Name: "wrap", User: "alice", Cluster: "bed", Place: PlaceTask, StepID: 0, NodeName: "n1",
			Nodes: one, AllocatedNodes: both, Components: 1, NodeID: 0, ProcID: 0, LocalID: 0, Tasks: 1, TasksOnNode: 1, CPUsOnNode: 1, AllocatedCPUs: 3,
			MemoryBytes: 700 << 20, LaunchAddress: "10.138.0.11", Partition: "main", SubmitDir: "/tmp"}},
		{"salloc", []string{"SLURM_MEM_PER_CPU=100"}, Job{ID: "3", Name: "interactive", Cluster: "bed", Place: PlaceShell, StepID: -1,
			Nodes: both, AllocatedNodes: both, Components: 1, NodeID: -1, ProcID: -1, LocalID: -1, Tasks: 1, TasksOnNode: 1, AllocatedCPUs: 2, Partition: "main", SubmitDir: "/tmp"}},
		{"salloc-on-node", []string{"SLURM_MEM_PER_CPU=100"}, Job{ID: "1", Name: "interactive", User: "alice", Cluster: "bed", Place: PlaceBatch, StepID: -1, NodeName: "n1",
			Nodes: both, AllocatedNodes: both, Components: 1, NodeID: 0, ProcID: -1, LocalID: -1, Tasks: 1, TasksOnNode: 1, CPUsOnNode: 2, AllocatedCPUs: 2,
			MemoryBytes: 200 << 20, LaunchAddress: "10.138.0.2", Partition: "main", SubmitDir: "/tmp"}},
	}
	for _, test := range tests {
		t.Run(test.env, func(t *testing.T) {
			got, ok := FromEnv(environment(t, test.env, test.more...))
			if !ok || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
			if want := test.env != "task"; got.Acts() != want {
				t.Errorf("Acts is %v", got.Acts())
			}
		})
	}
	// salloc names the nodes of a heterogeneous job only by component.
	shell := map[string]string{"SLURM_JOB_ID": "7", "SLURM_HET_SIZE": "2", "SLURM_JOB_NODELIST_HET_GROUP_0": "n1"}
	if job, ok := FromEnv(func(name string) string { return shell[name] }); !ok || job.Components != 2 || job.Place != PlaceShell {
		t.Errorf("in a shell of two components: %+v, %v", job, ok)
	}
	for _, env := range []map[string]string{
		{"SLURM_JOB_NODELIST": "n1"},
		{"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_ID": "x"},
		{"SLURM_JOB_NODELIST": "n1", "SLURM_JOB_ID": "-1"},
		{"SLURM_JOB_ID": "7"}, // by pam_slurm_adopt
	} {
		if job, ok := FromEnv(func(name string) string { return env[name] }); ok {
			t.Errorf("with %v: %+v", env, job)
		}
	}
}

func TestBatchScriptSubmittedFromAStep(t *testing.T) {
	env := environment(t, "step-in-batch")
	files := func(command string) func(string) ([]byte, error) {
		return func(path string) ([]byte, error) {
			if path != "/proc/146/cmdline" {
				return nil, errors.New("unexpected " + path)
			}
			return []byte(command), nil
		}
	}
	if job, _ := here(env, files("/bin/sh\x00/var/spool/slurmd/job00002/slurm_script\x00")); job.Place != PlaceBatch || len(job.Nodes) != 2 || job.StepID != -1 {
		t.Errorf("got %+v", job)
	}
	if job, _ := here(env, files("/opt/berth/bin/berth\x00run\x00")); job.Place != PlaceTask || len(job.Nodes) != 1 {
		t.Errorf("got %+v", job)
	}
	if job, _ := here(environment(t, "task"), files("")); job.Place != PlaceTask {
		t.Errorf("got %+v", job)
	}
}

func TestNth(t *testing.T) {
	for _, test := range []struct {
		list        string
		index, want int
	}{{"4", 0, 4}, {"4(x2),2", 1, 4}, {"4(x2),2", 2, 2}, {"4(x2),2", 3, -1}, {"", 0, -1}, {"x", 0, -1}, {"4(x),2", 0, -1}, {"4(x-1),2", 0, -1}} {
		if got := nth(test.list, test.index, -1); got != test.want {
			t.Errorf("%q[%d]: got %d, want %d", test.list, test.index, got, test.want)
		}
	}
}

func TestStepSmallerThanAllocation(t *testing.T) {
	step, _ := FromEnv(environment(t, "step-in-batch"))
	got := StepSmallerThanAllocation(step, 1, 350<<20)
	want := "this step may use only 1 of 2 nodes and 1 of 3 CPUs and 350 of 700 MiB of memory of what job 2 has here; to use all of it: srun -N2 --ntasks-per-node=1 -c3 --mem=0 berth run ..."
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	task, _ := FromEnv(environment(t, "task"))
	batch, _ := FromEnv(environment(t, "batch"))
	for _, got := range []string{
		StepSmallerThanAllocation(task, 2, 1<<30), StepSmallerThanAllocation(task, 0, 0),
		StepSmallerThanAllocation(batch, 1, 1), StepSmallerThanAllocation(Job{}, 1, 1),
	} {
		if got != "" {
			t.Errorf("warns: %s", got)
		}
	}
	step.Nodes = step.AllocatedNodes
	if got := StepSmallerThanAllocation(step, 3, 690<<20); got != "" {
		t.Errorf("warns of rounding: %s", got)
	}
}

func FuzzFromEnv(f *testing.F) {
	f.Add("1", "n[1-2]", "2(x2)", "0", "1")
	f.Fuzz(func(t *testing.T, id, list, counts, step, node string) {
		fuzzbound.Watch(t)
		values := map[string]string{"SLURM_JOB_ID": id, "SLURM_JOB_NODELIST": list, "SLURM_STEP_NODELIST": list, "SLURM_JOB_CPUS_PER_NODE": counts,
			"SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_STEP_ID": step, "SLURM_NODEID": node, "SLURMD_NODENAME": "n1", "SLURM_MEM_PER_NODE": counts}
		job, ok := FromEnv(func(name string) string { return values[name] })
		if ok && len(job.Nodes) == 0 {
			t.Errorf("no nodes in %+v", job)
		}
	})
}
