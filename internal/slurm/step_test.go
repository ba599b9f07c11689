package slurm

import (
	"slices"
	"testing"
)

func TestStepEnvLeavesTheAllocationsShapeOut(t *testing.T) {
	env := []string{"PATH=/bin", "SLURM_JOB_ID=1", "SLURM_MEM_PER_CPU=100", "SLURM_NTASKS=4", "SLURM_JOB_NODELIST=n1", "SLURM_CPU_BIND_TYPE=mask_cpu:"}
	if got, want := StepEnv(env), []string{"PATH=/bin", "SLURM_JOB_ID=1", "SLURM_JOB_NODELIST=n1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStepCommandRunsTheProgramOnEveryNode(t *testing.T) {
	for want, job := range map[string]Job{
		"--nodes=2":       {AllocatedNodes: []string{"n2", "n3"}},
		"--het-group=0-2": {AllocatedNodes: []string{"n2"}, Components: 3},
	} {
		got := StepCommand(job, "berth", "run", "--", "echo", "a b")
		if program := []string{"berth", "run", "--", "echo", "a b"}; !slices.Equal(got[len(got)-5:], program) {
			t.Errorf("%q does not end in the program", got)
		}
		if !slices.Contains(got, want) || !slices.Contains(got, "--ntasks-per-node=1") {
			t.Errorf("%q does not have %s", got, want)
		}
	}
}
