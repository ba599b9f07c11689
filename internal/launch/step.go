package launch

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"berth.dev/berth/internal/slurm"
)

// needsStep tells whether a process holds an allocation without being on all of
// its nodes: what salloc starts runs on the login host, a batch script on the
// first node. On the only node of a job, a batch script needs no step.
func needsStep(job slurm.Job) bool {
	several := len(job.AllocatedNodes) > 1 || job.Components > 1
	return job.Place == slurm.PlaceShell || job.Place == slurm.PlaceBatch && several
}

// becomeStep replaces this process by an srun that starts berth with the same
// arguments inside of the allocation: signals, streams and the exit code are
// srun's to pass on. It returns only with an error.
func becomeStep(options Options, job slurm.Job) error {
	if err := options.Spec.Validate(); err != nil {
		return fail(ExitUsage, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find berth's own file: %w", err)
	}
	srun, err := exec.LookPath("srun")
	if err != nil {
		return fail(ExitUnavailable, fmt.Errorf("start a step in job %s: %w; add the directory of Slurm's commands to PATH", job.ID, err))
	}
	options.Log.Debug("starting a step over all nodes of job " + job.ID)
	command := slurm.StepCommand(job, append([]string{self}, os.Args[1:]...)...)
	return fail(ExitUnavailable, fmt.Errorf("start %s: %w", srun, syscall.Exec(srun, command, slurm.StepEnv(os.Environ()))))
}
