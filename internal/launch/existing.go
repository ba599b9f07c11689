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

// Existing names a Kubernetes cluster that berth has not started, for a run there.
type Existing struct {
	// Kubeconfig is the path of the kubeconfig. It is empty for a cluster of berth.
	Kubeconfig string
	// Namespace is empty for the namespace of the kubeconfig's context.
	Namespace string
	// Pin places the pods on the cluster's nodes that carry the names of the job's hosts.
	Pin bool
}

// existingFlags lists the flags of a run on an existing cluster.
func existingFlags() []string {
	return []string{"kubeconfig", "namespace", "pin", "file", "logs", "grace", "quiet", "verbose", "print"}
}

// Check returns an error for flags that contradict each other. given lists all flags on the
// command line.
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
		return fmt.Errorf("run on an existing cluster (--kubeconfig): omit --%s, which only a cluster that berth starts can consider", strings.Join(refused, ", --"))
	case len(command) > 0:
		return fmt.Errorf("run on an existing cluster (--kubeconfig): a command needs no berth there: KUBECONFIG=%s %s", e.Kubeconfig, command[0])
	case len(manifests) == 0:
		return errors.New("run on an existing cluster (--kubeconfig): no manifests: name them with -f FILE")
	}
	return nil
}

const (
	// reachLimit bounds the wait for the API server of an existing cluster.
	reachLimit = 2 * time.Minute
	// afterEnd is the time from the end of the job to the end of the owner, and the time by
	// which the owner outlives a run that continues. slurmctld enforces time limits only about
	// every 30 s (22.05) and may permit more (OverTimeLimit). Then the pods have MaxGrace. With
	// half of the time over before a question to Slurm, both fit.
	afterEnd = 90 * time.Second
	// ownerLife is the life of an owner if the end of the job is unknown. It is extended when
	// half of it is over.
	ownerLife = time.Hour
	// ownerPoll is the interval between checks of an owner.
	ownerPoll = 10 * time.Second
)

// runExisting runs the workload on an existing cluster. Of a step with several tasks, only
// the first one acts.
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
	g := &guest{userWorkload: userWorkload{Options: options}}
	if inJob {
		g.allocation = allocation.New(job, options.Log)
		g.allocation.Early = options.Spec.Grace
		if err := g.allocation.Check(); err != nil {
			return 0, err
		}
		go g.allocation.Inquire(ctx, giveUp)
		go allocation.WatchStepd(ctx, options.Getenv, giveUp)
	}
	return g.run(ctx, giveUp)
}

// runExistingInStep runs this command again in a step of one task. Slurm kills the step of a
// batch script at once when the script ends, but gives other steps time.
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

// guest is a run on an existing cluster.
type guest struct {
	userWorkload
	cluster *existing.Cluster
	owner   *existing.Owner
	// expires is the deadline of the owner. limited reports whether the job's end gives it.
	expires time.Time
	limited bool
}

// run runs the workload and then removes everything that it applied.
func (g *guest) run(ctx context.Context, giveUp context.CancelCauseFunc) (code int, err error) {
	outlivePipes()
	if err := g.prepare(ctx); err != nil {
		return 0, explain(ctx, g.allocation, err)
	}
	run := g.slurmRun()
	if err := g.cluster.RemoveEarlier(ctx, run, g.objects); err != nil {
		return 0, explain(ctx, g.allocation, exitcode.Wrap(exitcode.Unavailable, err))
	}
	g.expires, g.limited = g.nextExpiry(ctx)
	if g.owner, err = g.cluster.CreateOwner(ctx, run, g.expires); err != nil {
		return 0, explain(ctx, g.allocation, exitcode.Wrap(exitcode.Manifest, existing.Explain(err)))
	}
	keeper, err := startKeeper(g.cluster.Kubeconfig, g.owner)
	if err != nil {
		return 0, errors.Join(err, g.owner.Delete(ctx))
	}
	defer func() {
		if problem := g.leave(ctx, keeper, allocation.LocalGrace); problem != nil {
			g.Log.Warn(problem.Error())
		}
	}()
	g.Crash.Note(crash.Note{Whose: "berth", Lost: lostFollow})
	if g.Existing.Pin {
		if err := existing.Pin(g.objects, g.hosts(), g.owner.Name); err != nil {
			return 0, exitcode.Wrap(exitcode.Manifest, err)
		}
	}
	g.owner.Adopt(g.objects, run)
	if g.objects, err = g.client.Apply(ctx, g.objects); err != nil {
		return 0, explain(ctx, g.allocation, exitcode.Wrap(exitcode.Manifest, existing.Explain(err)))
	}
	g.Report("workload")
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	defer watcher.Wait() // it changes the deadline, which leave reads
	defer stop()
	watcher.Go(func() { g.watchOwner(watching, giveUp) })
	work, end := allocation.WithGrace(ctx, g.askToEnd)
	result, err := g.followApart(work, g.kubeconfig, g.objects, workload.Streams{Foreign: true}, giveUp)
	code, err = g.result(result, g.asked.Load(), err)
	end()
	if ctx.Err() != nil {
		return 0, g.allocation.Reason(context.Cause(ctx))
	}
	return code, err
}

// prepare reads and checks the manifests, and reaches the cluster.
func (g *guest) prepare(ctx context.Context) (err error) {
	if g.objects, err = workload.Read(g.Spec.Manifests, g.Stdin); err != nil {
		return inputError(err)
	}
	if g.cluster, err = existing.Open(g.Existing.Kubeconfig, g.Existing.Namespace); err != nil {
		return exitcode.Wrap(exitcode.NoInput, err)
	}
	g.client, g.kubeconfig = g.cluster.Client, g.cluster.Kubeconfig
	reaching, cancel := context.WithTimeoutCause(ctx, reachLimit, fmt.Errorf("no answer for %s", reachLimit))
	defer cancel()
	if err := g.cluster.Reach(reaching, func(text string) { g.Log.Warn(text) }); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	g.Report("cluster")
	if err := g.cluster.Prepare(ctx, g.objects); err != nil {
		return exitcode.Wrap(exitcode.Manifest, err)
	}
	if !g.Existing.Pin {
		return nil
	}
	if len(g.hosts()) == 0 {
		return exitcode.Wrap(exitcode.Usage, errors.New("place pods on the hosts of the job (--pin): this run is in no Slurm job"))
	}
	return exitcode.Wrap(exitcode.Config, g.cluster.CheckHosts(ctx, g.hosts()))
}

// hosts returns the names of the hosts of the job.
func (g *guest) hosts() []string {
	if g.allocation == nil {
		return nil
	}
	return g.allocation.Job.AllocatedNodes
}

func (g *guest) slurmRun() existing.Run {
	if g.allocation == nil {
		return existing.Run{}
	}
	return existing.Run{Job: g.allocation.Job.ID, Cluster: g.allocation.Job.Cluster, Restarts: g.Getenv("SLURM_RESTART_COUNT")}
}

// nextExpiry asks Slurm for the end of the job, or of the step, and returns when the owner
// is to expire. limited reports whether that follows from a time limit. Without an answer,
// an earlier one counts. A run that continues after the end keeps its owner.
func (g *guest) nextExpiry(ctx context.Context) (expires time.Time, limited bool) {
	if g.allocation != nil {
		moment, err := slurm.Now(ctx, g.allocation.Job, g.allocation.Ask)
		switch {
		case err == nil && !moment.End.IsZero():
			return latest(moment.End, time.Now()).Add(afterEnd), true
		case err != nil && g.limited:
			return latest(g.expires, time.Now().Add(afterEnd)), true
		case err != nil:
			g.Log.Debug("the end of the job is not known: " + err.Error())
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

// watchOwner moves the deadline of the owner when the time limit of the job changes. It
// ends the run when the owner is deleted.
func (g *guest) watchOwner(ctx context.Context, giveUp context.CancelCauseFunc) {
	refused := false
	asked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(ownerPoll):
		}
		switch exists, err := g.owner.Exists(ctx); {
		case err == nil && !exists && ctx.Err() == nil:
			giveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("the Job %s, which owns all objects of this run, was deleted, and they with it", g.owner.Name)))
			return
		case (apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)) && !refused:
			refused = true
			g.Log.Warn(fmt.Sprintf("the cluster refuses the credentials of this run, so its end and its output may not be seen: %v", err))
		}
		// Halve the remaining time with each question, so that a long job asks rarely.
		if now := time.Now(); now.Sub(asked) < g.expires.Sub(now) {
			continue
		}
		asked = time.Now()
		next, limited := g.nextExpiry(ctx)
		if next.Equal(g.expires) {
			continue
		}
		if err := g.owner.Move(ctx, next); err != nil {
			g.Log.Debug(err.Error())
			continue
		}
		g.expires, g.limited = next, limited
	}
}

// askToEnd asks the applied objects to end.
func (g *guest) askToEnd(ctx context.Context, cause error) {
	g.end(ctx, cause, func(ctx context.Context, _ time.Duration) {
		_ = g.client.Remove(ctx, g.objects) // leave reports errors
	})
}

// leave removes everything that the run has applied, and its owner last. If a signal cuts
// the removal short, the cluster completes it. If the owner cannot be deleted within patience,
// the keeper continues to try.
func (g *guest) leave(ctx context.Context, keeper *keeper, patience time.Duration) error {
	limit := leaveLimit
	if ctx.Err() != nil {
		limit = 0
	}
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	problem := g.client.Remove(removing, g.objects)
	deleting, done := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer done()
	if err := existing.DeleteRetrying(deleting, g.client, g.owner.Namespace, g.owner.Name, g.owner.UID); err != nil {
		keeper.takeOver()
		return fmt.Errorf("the objects of the run still exist: another process of berth tries for %s to delete them, unless Slurm ends it, and otherwise the cluster does so at %s: %w",
			keeperLimit, g.expires.Format(time.DateTime), err)
	}
	keeper.end()
	if problem != nil && limit > 0 {
		return fmt.Errorf("some objects of the run still exist: %w", problem)
	}
	return nil
}
