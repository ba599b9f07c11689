package launch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"berth.dev/berth/internal/slurm"
)

// needsStep tells whether a process holds an allocation without being on all of
// its nodes: what salloc starts runs on the login host, a batch script on the
// first node. On the only node of a job, a batch script needs no step.
func needsStep(job slurm.Job) bool {
	return job.Place == slurm.PlaceShell || job.Place == slurm.PlaceBatch && severalNodes(job)
}

func severalNodes(job slurm.Job) bool { return len(job.AllocatedNodes) > 1 || job.Components > 1 }

// becomeStep replaces this process by an srun that starts berth with the same
// arguments inside of the allocation: signals, streams and the exit code are
// srun's to pass on. It returns only with an error.
func becomeStep(ctx context.Context, options Options, job slurm.Job) error {
	if err := options.Spec.Validate(); err != nil {
		return fail(ExitUsage, err)
	}
	srun, self, err := findSrun(job)
	if err != nil {
		return err
	}
	options.Log.Debug("starting a step over all nodes of job " + job.ID)
	key := givesKey(ctx, job, options.Spec)
	name := ""
	if options.Spec.Stay {
		name = UpStep
	}
	command := slurm.StepCommand(job, name, key, append([]string{self}, os.Args[1:]...)...)
	env := slurm.StepEnv(os.Environ())
	if key {
		// For passKey; this process is about to be another program.
		runtime.LockOSThread()
		if err := passKey(options.Spec); err != nil {
			return err
		}
		env = append(env, stepKeyVariable+"=stdin")
	}
	return fail(ExitUnavailable, fmt.Errorf("start %s: %w", srun, syscall.Exec(srun, command, env)))
}

// findSrun returns the files of srun and of berth itself, for a step in a job.
func findSrun(job slurm.Job) (srun, self string, err error) {
	if self, err = os.Executable(); err != nil {
		return "", "", fmt.Errorf("find berth's own file: %w", err)
	}
	if srun, err = exec.LookPath("srun"); err != nil {
		return "", "", fail(ExitUnavailable, fmt.Errorf("start a step in job %s: %w; add the directory of Slurm's commands to PATH", job.ID, err))
	}
	return srun, self, nil
}
