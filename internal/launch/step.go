package launch

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/proof"
)

// needsStep reports whether a process in an allocation must start a step. A program
// under salloc runs on the login host, and a batch script runs on the first node. On
// a job's only node, too, Slurm kills the step of a batch script at once when the
// script ends, but not the job's other steps. Without srun, the run goes on in the
// script's step. That needs a warning only if the script's shell is still there,
// because the script then ends at the first signal.
func needsStep(job slurm.Job, options Options) bool {
	if job.Place == slurm.PlaceShell || job.Place == slurm.PlaceBatch && severalNodes(job) {
		return true
	}
	if !slurm.InScript(job, options.Getenv) {
		return false
	}
	_, err := exec.LookPath("srun")
	if err != nil && !slurm.IsScript(options.Getenv, os.Getpid()) {
		options.Log.Warn(fmt.Sprintf("srun is in no directory of PATH: the end of job %s kills this run at once, together with the script's shell; add the directory of Slurm commands to PATH", job.ID))
	}
	return err == nil
}

func severalNodes(job slurm.Job) bool { return len(job.AllocatedNodes) > 1 || job.Components > 1 }

// runInStep starts berth with the same arguments on all nodes of the allocation,
// with srun, and returns its exit code. The persistent parent needs srun itself
// as its child, so this process becomes srun then.
func runInStep(ctx context.Context, options Options, job slurm.Job) (int, error) {
	if err := options.Spec.Validate(); err != nil {
		return 0, exitcode.Wrap(exitcode.Usage, err)
	}
	srun, self, err := findSrun(job)
	if err != nil {
		return 0, err
	}
	options.Log.Debug("starting a step over all nodes of job " + job.ID)
	key := severalNodes(job) && options.Spec.Join == "" && proof.GivesKey(ctx, job, options.Spec)
	name := ownStepName()
	if options.Spec.Stay {
		name = upStep
	}
	command := slurm.StepCommand(job, name, key, append([]string{self}, os.Args[1:]...)...)
	env := slurm.StepEnv(os.Environ())
	if !severalNodes(job) && job.Place == slurm.PlaceBatch {
		env = slurm.KeepScriptEnv(env, os.Environ())
	}
	if key {
		// The relay that PassKey starts ends with this thread.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := proof.PassKey(options.Spec); err != nil {
			return 0, err
		}
		env = append(env, proof.StepKeyVariable+"=stdin")
	}
	if options.Getenv(upVariable) != "" {
		if err := options.Crash.Close(); err != nil {
			return 0, err
		}
		return 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start %s: %w", srun, syscall.Exec(srun, command, env)))
	}
	if !key && !proof.UsesInput(options.Spec) {
		closeInput() // srun would read what is left for the next command of a script
	}
	return newStep(options, job, name).run(ctx, srun, command, env)
}

// findSrun returns the paths of srun and of berth, for a step in a job. It returns an error
// with the remedy if srun is in no directory of PATH.
func findSrun(job slurm.Job) (srun, self string, err error) {
	if self, err = os.Executable(); err != nil {
		return "", "", fmt.Errorf("find berth's own file: %w", err)
	}
	if srun, err = exec.LookPath("srun"); err != nil {
		return "", "", exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start a step in job %s: %w; add the directory of Slurm commands to PATH", job.ID, err))
	}
	return srun, self, nil
}
