package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/existing"
	"berth.dev/berth/internal/kube/workload"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/crash"
)

// Existing selects a Kubernetes cluster that berth did not start, and the place of a run in it.
type Existing struct {
	// Kubeconfig is the path of the kubeconfig file. If it is empty, berth starts a cluster.
	Kubeconfig string
	// Namespace is the namespace of the objects. If it is empty, the kubeconfig's context
	// gives it.
	Namespace string
	// Pin places the pods on the nodes of the cluster that have the names of the job's hosts.
	Pin bool
}

// existingFlags lists the flags that a run on an existing cluster accepts.
func existingFlags() []string {
	return []string{"kubeconfig", "namespace", "pin", "file", "logs", "grace", "quiet", "verbose", "print"}
}

// Check returns an error if the options contradict each other. given lists the names of all
// flags on the command line.
func (e Existing) Check(given, command, manifests []string) error {
	if e.Kubeconfig == "" {
		if e.Namespace != "" || e.Pin {
			return errors.New("--namespace and --pin are for an existing cluster: name its kubeconfig with --kubeconfig FILE, or omit them")
		}
		return nil
	}
	refused := slices.DeleteFunc(slices.Clone(given), func(name string) bool { return slices.Contains(existingFlags(), name) })
	switch {
	case len(refused) > 0:
		return fmt.Errorf("run on an existing cluster (--kubeconfig): omit --%s, which apply only to a cluster that berth starts", strings.Join(refused, ", --"))
	case len(command) > 0:
		return fmt.Errorf("run on an existing cluster (--kubeconfig): berth runs no command there; run it without berth: KUBECONFIG=%s %s", e.Kubeconfig, command[0])
	case len(manifests) == 0:
		return errors.New("run on an existing cluster (--kubeconfig): no manifests: name them with -f FILE")
	}
	return nil
}

const (
	// reachLimit bounds the wait for the API server of an existing cluster.
	reachLimit = 2 * time.Minute
	// afterEnd is the time from the end of the job to the deadline of the owner. The owner of a
	// run that continues after that end expires afterEnd from now. slurmctld enforces time
	// limits only about every 30 s (22.05), and may permit more (OverTimeLimit). Then the pods
	// have MaxGrace. Half of afterEnd may pass before the run asks Slurm again, and the rest
	// suffices for both.
	afterEnd = 90 * time.Second
	// ownerLife is the time until the owner expires if the job has no known end. The run
	// moves the deadline whenever half of the time is over.
	ownerLife = time.Hour
	// ownerPoll is the interval between checks that the owner exists.
	ownerPoll = 10 * time.Second
)

// runExisting runs the workload on an existing cluster, and returns its exit code. In a step
// with several tasks, only the first task does this.
func runExisting(ctx context.Context, options Options, job slurm.Job, inJob bool) (int, error) {
	err := options.Spec.Validate()
	if err == nil {
		err = options.Existing.Check(options.Given, options.Spec.Command, options.Spec.Manifests)
	}
	if err == nil {
		_, err = workload.NewSelection(options.Spec.Logs)
	}
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Usage, err)
	}
	if inJob && needsStep(job, options) {
		return runExistingInStep(ctx, options, job)
	}
	if inJob && (!job.Acts() || job.ProcID > 0) {
		options.Log.Debug("the first task of the step does the work; this one does not")
		if err := options.Crash.Close(); err != nil {
			return 0, err
		}
		if job.Acts() {
			return 0, nil
		}
		return 0, idle(ctx, job, options)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	r := &existingRun{userWorkload: userWorkload{Options: options}}
	if inJob {
		r.allocation = allocation.New(job, options.Log)
		r.allocation.Early = options.Spec.Grace
		if err := r.allocation.Check(); err != nil {
			return 0, err
		}
		go r.allocation.Inquire(ctx, giveUp)
		go allocation.WatchStepd(ctx, options.Getenv, giveUp)
	}
	return r.run(ctx, giveUp)
}

// runExistingInStep runs this command again in a step of one task, and returns the exit code
// of that step. Slurm kills the step of a batch script at once when the script ends, but gives
// other steps time.
func runExistingInStep(ctx context.Context, options Options, job slurm.Job) (int, error) {
	srun, self, err := findSrun(job)
	if err != nil {
		return 0, err
	}
	node := job.NodeName
	if node == "" && len(job.AllocatedNodes) > 0 {
		node = job.AllocatedNodes[0]
	}
	options.Log.Debug("starting a step on " + node + " of job " + job.ID)
	name := ownStepName()
	command := slurm.NodeStepCommand(job, node, name, append([]string{self}, os.Args[1:]...)...)
	return newStep(options, job, name).run(ctx, srun, command, slurm.StepEnv(os.Environ()))
}

// existingRun is a run on an existing cluster.
type existingRun struct {
	userWorkload
	cluster *existing.Cluster
	owner   *existing.Owner
	// expires is the deadline of the owner. limited reports whether it follows from the time
	// limit of the job.
	expires time.Time
	limited bool
}

// run runs the workload, removes everything that it applied, and returns the exit code.
func (r *existingRun) run(ctx context.Context, giveUp context.CancelCauseFunc) (code int, err error) {
	outlivePipes()
	if err := r.prepare(ctx); err != nil {
		return 0, explain(ctx, r.allocation, err)
	}
	job := r.slurmJob()
	if err := r.cluster.RemoveEarlier(ctx, job, r.objects); err != nil {
		return 0, explain(ctx, r.allocation, exitcode.Wrap(exitcode.Unavailable, err))
	}
	r.expires, r.limited = r.nextExpiry(ctx)
	if r.owner, err = r.cluster.CreateOwner(ctx, job, r.expires); err != nil {
		return 0, explain(ctx, r.allocation, exitcode.Wrap(exitcode.Manifest, existing.Explain(err)))
	}
	cleaner, err := startCleaner(r.cluster.Kubeconfig, r.owner)
	if err != nil {
		return 0, errors.Join(err, r.owner.Delete(ctx))
	}
	defer func() {
		if problem := r.leave(ctx, cleaner, allocation.LocalGrace); problem != nil {
			r.Log.Warn(problem.Error())
		}
	}()
	r.Crash.Note(crash.Note{Process: "berth", Lost: lostFollow})
	if r.Existing.Pin {
		if err := existing.Pin(r.objects, r.hosts(), r.owner.Name); err != nil {
			return 0, exitcode.Wrap(exitcode.Manifest, err)
		}
	}
	r.owner.Adopt(r.objects, job)
	if r.objects, err = r.client.Apply(ctx, r.objects); err != nil {
		return 0, explain(ctx, r.allocation, exitcode.Wrap(exitcode.Manifest, existing.Explain(err)))
	}
	r.Report("workload")
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait() // it changes the deadline, which leave reads
	defer stop()
	watcher.Go(func() { r.watchOwner(watching, giveUp) })
	work, end := allocation.WithGrace(ctx, r.askToEnd)
	result, err := r.followApart(work, r.kubeconfig, r.objects, workload.Streams{Existing: true}, giveUp)
	code, err = r.result(result, r.asked.Load(), err)
	end()
	if ctx.Err() != nil {
		return 0, r.allocation.Reason(context.Cause(ctx))
	}
	return code, err
}

// prepare reads and checks the manifests, and reaches the cluster.
func (r *existingRun) prepare(ctx context.Context) (err error) {
	if r.objects, err = workload.Read(r.Spec.Manifests, r.Stdin); err != nil {
		return inputError(err)
	}
	if r.cluster, err = existing.Open(r.Existing.Kubeconfig, r.Existing.Namespace); err != nil {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	r.client, r.kubeconfig = r.cluster.Client, r.cluster.Kubeconfig
	reaching, cancel := context.WithTimeoutCause(ctx, reachLimit, fmt.Errorf("no answer for %s", reachLimit))
	defer cancel()
	if err := r.cluster.Reach(reaching, func(text string) { r.Log.Warn(text) }); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	r.Report("cluster")
	if err := r.cluster.Prepare(ctx, r.objects); err != nil {
		return exitcode.Wrap(exitcode.Manifest, err)
	}
	if !r.Existing.Pin {
		return nil
	}
	if len(r.hosts()) == 0 {
		return exitcode.Wrap(exitcode.Usage, errors.New("place pods on the hosts of the job (--pin): this run is in no Slurm job"))
	}
	return exitcode.Wrap(exitcode.Config, r.cluster.CheckHosts(ctx, r.hosts()))
}

// hosts returns the names of the hosts of the job, or nil outside Slurm.
func (r *existingRun) hosts() []string {
	if r.allocation == nil {
		return nil
	}
	return r.allocation.Job.AllocatedNodes
}

// slurmJob returns the identity of the job. It is zero outside Slurm.
func (r *existingRun) slurmJob() existing.SlurmJob {
	if r.allocation == nil {
		return existing.SlurmJob{}
	}
	return existing.SlurmJob{ID: r.allocation.Job.ID, Cluster: r.allocation.Job.Cluster, Restarts: r.Getenv("SLURM_RESTART_COUNT")}
}

// nextExpiry asks Slurm for the end of the job, or of the step, and returns the time at
// which the owner is to expire. limited reports whether that follows from a time limit. If
// Slurm does not answer, the last known time limit counts. If the end has passed, the owner
// of a run that continues expires afterEnd from now.
func (r *existingRun) nextExpiry(ctx context.Context) (expires time.Time, limited bool) {
	if r.allocation != nil {
		moment, err := slurm.Now(ctx, r.allocation.Job, r.allocation.Ask)
		switch {
		case err == nil && !moment.End.IsZero():
			return latest(moment.End, time.Now()).Add(afterEnd), true
		case err != nil && r.limited:
			return latest(r.expires, time.Now().Add(afterEnd)), true
		case err != nil:
			r.Log.Debug("the end of the job is not known: " + err.Error())
		}
	}
	return time.Now().Add(ownerLife), false
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// watchOwner ends the run when the owner is deleted. It moves the deadline of the owner when
// the time limit of the job changes, or when half of the time before the deadline is over.
func (r *existingRun) watchOwner(ctx context.Context, giveUp context.CancelCauseFunc) {
	refused := false
	asked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(ownerPoll):
		}
		switch exists, err := r.owner.Exists(ctx); {
		case err == nil && !exists && ctx.Err() == nil:
			giveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("the Job %s, which owns all objects of this run, was deleted, and they with it", r.owner.Name)))
			return
		case (apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)) && !refused:
			refused = true
			r.Log.Warn(fmt.Sprintf("the cluster refuses the credentials of this run, so berth may miss the end and the output of the workload: %v", err))
		}
		// Ask Slurm again only when half of the remaining time is over, so that a long job
		// asks rarely.
		if now := time.Now(); now.Sub(asked) < r.expires.Sub(now) {
			continue
		}
		asked = time.Now()
		next, limited := r.nextExpiry(ctx)
		if next.Equal(r.expires) {
			continue
		}
		if err := r.owner.Move(ctx, next); err != nil {
			r.Log.Debug(err.Error())
			continue
		}
		r.expires, r.limited = next, limited
	}
}

// askToEnd deletes the applied objects, so that their pods end within the grace period.
func (r *existingRun) askToEnd(ctx context.Context, cause error) {
	r.end(ctx, cause, func(ctx context.Context, _ time.Duration) {
		_ = r.client.Remove(ctx, r.objects) // leave reports errors
	})
}

// leave removes everything that the run has applied, and its owner last. If ctx has ended,
// leave does not wait until the objects are gone. If the owner cannot be deleted within
// patience, the cleaner continues to try.
func (r *existingRun) leave(ctx context.Context, cleaner *cleaner, patience time.Duration) error {
	limit := leaveLimit
	if ctx.Err() != nil {
		limit = 0
	}
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	problem := r.client.Remove(removing, r.objects)
	deleting, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer done()
	if err := existing.DeleteRetrying(deleting, r.client, r.owner.Namespace, r.owner.Name, r.owner.UID); err != nil {
		cleaner.takeOver()
		return fmt.Errorf("the objects of the run still exist: another process of berth tries for %s to delete them, unless Slurm ends it, and otherwise the cluster does so at %s: %w",
			cleanerLimit, r.expires.Format(time.DateTime), err)
	}
	cleaner.end()
	if problem != nil && limit > 0 {
		return fmt.Errorf("some objects of the run still exist: %w", problem)
	}
	return nil
}
