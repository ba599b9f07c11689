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

func TestStepCommandRunsTheProgramOnTheHead(t *testing.T) {
	got := StepCommand(Job{Nodes: []string{"n2", "n3"}}, "berth", "run", "--", "echo", "a b")
	if want := []string{"berth", "run", "--", "echo", "a b"}; !slices.Equal(got[len(got)-5:], want) {
		t.Errorf("%q does not end in the program", got)
	}
	if !slices.Contains(got, "--nodelist=n2") {
		t.Errorf("%q does not name the head", got)
	}
}
