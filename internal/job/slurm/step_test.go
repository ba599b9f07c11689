package slurm

import (
	"slices"
	"testing"
)

func TestStepEnvOmitsAllocationShape(t *testing.T) {
	env := []string{"PATH=/bin", "SLURM_JOB_ID=1", "SLURM_MEM_PER_CPU=100", "SLURM_NTASKS=4", "SLURM_HINT=nomultithread", "SLURM_THREADS_PER_CORE=1", "SLURM_JOB_NODELIST=n1", "SLURM_CPU_BIND_TYPE=mask_cpu:", "SLURM_EXPORT_ENV=NONE"}
	if got, want := StepEnv(env), []string{"PATH=/bin", "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStepHasGPUsOfAllTasks(t *testing.T) {
	for _, test := range []struct {
		env  []string
		want []string
	}{
		{[]string{"SLURM_TASKS_PER_NODE=2", "SLURM_GPUS_PER_TASK=2"}, []string{"SLURM_GPUS_PER_NODE=4"}},
		{[]string{"SLURM_TASKS_PER_NODE=2(x3)", "SLURM_GPUS_PER_TASK=a100:1"}, []string{"SLURM_GPUS_PER_NODE=a100:2"}},
		{[]string{"SLURM_TASKS_PER_NODE=2", "SLURM_GPUS_PER_TASK=a100:1,v100:2"}, []string{"SLURM_GPUS_PER_NODE=a100:2,v100:4"}},
		{[]string{"SLURM_TASKS_PER_NODE=2", "SLURM_GPUS_PER_TASK=a100"}, []string{"SLURM_GPUS_PER_NODE=a100:2"}},
		{[]string{"SLURM_TASKS_PER_NODE=2", "SLURM_GPUS_PER_TASK=2", "SLURM_GPUS_PER_NODE=3"}, []string{"SLURM_GPUS_PER_NODE=3"}},
		{[]string{"SLURM_TASKS_PER_NODE=2", "SLURM_GPUS_PER_TASK=2", "SLURM_HET_SIZE=2"}, []string{"SLURM_HET_SIZE=2"}},
		{[]string{"SLURM_TASKS_PER_NODE=2,1", "SLURM_GPUS_PER_TASK=2"}, nil},
		{[]string{"SLURM_TASKS_PER_NODE=2(x3),1", "SLURM_GPUS_PER_TASK=2"}, nil},
		{[]string{"SLURM_TASKS_PER_NODE=2(x2),1(x3)", "SLURM_GPUS_PER_TASK=2"}, nil},
		{[]string{"SLURM_GPUS_PER_TASK=2"}, nil},
		{[]string{"SLURM_TASKS_PER_NODE=2", "SLURM_GPUS=2"}, []string{"SLURM_GPUS=2"}},
	} {
		if got := StepEnv(test.env); !slices.Equal(got, test.want) {
			t.Errorf("%q: %q, want %q", test.env, got, test.want)
		}
	}
}

// A program of the user finds the variables of its batch script, also in a step
// that has other ones.
func TestProgramsHaveTheScriptsEnvironment(t *testing.T) {
	script := []string{"PATH=/bin", "SLURM_NTASKS=4", "SLURM_JOB_ID=1", "TEXT=a\nb"}
	step := KeepScriptEnv(StepEnv(script), script)
	if !slices.Contains(step, "SLURM_JOB_ID=1") || slices.Contains(step, "SLURM_NTASKS=4") {
		t.Errorf("the environment for srun is %q", step)
	}
	step = append(step, "SLURM_NTASKS=1", "SLURM_STEP_ID=0", "SRUN_DEBUG=3", "LATER=1")
	want := []string{"PATH=/bin", "TEXT=a\nb", "LATER=1", "SLURM_NTASKS=4", "SLURM_JOB_ID=1"}
	if got := ScriptEnv(step); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for _, other := range [][]string{script, append(script, "BERTH_SCRIPT_ENV=foreign")} {
		if got := ScriptEnv(other); !slices.Equal(got, other) {
			t.Errorf("%q, want %q", got, other)
		}
	}
}

// srun would take the first Ctrl-C for a question, and a second one for an order
// to kill.
func TestFirstInterruptIsForProgram(t *testing.T) {
	for _, command := range [][]string{StepCommand(Job{}, "", false, "berth"), NodeStepCommand(Job{}, "n1", "name", "berth")} {
		if !slices.Contains(command, "--disable-status") {
			t.Errorf("%q lets srun ask", command)
		}
	}
}

func TestStepCommandRunsTheProgramOnEveryNode(t *testing.T) {
	for want, job := range map[string]Job{
		"--nodes=2":       {AllocatedNodes: []string{"n2", "n3"}},
		"--het-group=0-2": {AllocatedNodes: []string{"n2"}, Components: 3},
	} {
		got := StepCommand(job, "", false, "berth", "run", "--", "echo", "a b")
		if program := []string{"berth", "run", "--", "echo", "a b"}; !slices.Equal(got[len(got)-5:], program) {
			t.Errorf("%q does not end in the program", got)
		}
		if !slices.Contains(got, want) || !slices.Contains(got, "--ntasks-per-node=1") {
			t.Errorf("%q does not have %s", got, want)
		}
		if !slices.Contains(got, "--input=0") || !slices.Contains(StepCommand(job, "", true, "berth"), "--input=all") {
			t.Errorf("%q lets the wrong tasks read standard input", got)
		}
	}
}
