package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/archive"
	"berth.dev/berth/internal/launch/command"
	"berth.dev/berth/internal/launch/crash"
)

const (
	// useVariable makes a task use the cluster on its node. Its value counts
	// the nodes that the task was sent to so far.
	useVariable = "BERTH_USE_STANDING"
	// maxHops bounds that number. The first node may send the task to another
	// node that has led the run since the head was lost.
	maxHops = 3
)

// errKeepsNothing is the error of --keep for a cluster that ends with its run.
var errKeepsNothing = errors.New("keep what the manifests have applied (--keep): the cluster of this run ends with it; start one that stays with 'berth up', or omit --keep")

// hops returns how often this task was sent to another node.
func (o Options) hops() int {
	n, _ := strconv.Atoi(o.Getenv(useVariable))
	return n
}

// hop returns the environment variable for a task that is sent to the next node.
func (o Options) hop() string { return useVariable + "=" + strconv.Itoa(o.hops()+1) }

// StepPersistent is reported by a run that uses a cluster that is up, instead of
// the steps of a start.
const StepPersistent = "persistent"

// persistentLimit bounds the wait for a cluster that is starting, or that has
// lost its head.
const persistentLimit = 2 * time.Minute

// headPoll is the interval between checks whether another node leads a cluster.
const headPoll = 200 * time.Millisecond

// usePersistent runs the workload on the cluster that is up in this allocation or
// on this machine. used is false if there is none.
func usePersistent(ctx context.Context, options Options, job slurm.Job, inJob bool) (used bool, code int, err error) {
	hops := options.hops()
	if inJob && isTask(job, options.Getenv) && hops == 0 {
		return false, 0, nil // a user who starts a step wants a separate cluster
	}
	cluster, ok := persistent.Find(rundir.MemoryPlaces(options.Getenv), jobOf(options.Getenv))
	if cluster.Head != "" {
		cluster, ok = awaitHead(ctx, options, job.ID, cluster)
	}
	head := cluster.Head
	switch {
	case ctx.Err() != nil:
		return true, 0, context.Cause(ctx)
	case hops > 0 && !ok, hops >= maxHops && head != "":
		return true, 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("use the cluster of job %s: no cluster of 'berth up' is on this node; it has ended, or it belongs to a 'berth run', which takes neither commands nor images of other runs", job.ID))
	case !ok && inJob && job.Place == slurm.PlaceShell:
		// A program under salloc is not on the nodes.
		// Without an answer, this run must not start a second cluster.
		if _, head, err = slurm.StepNamed(ctx, job.ID, upStep, slurm.AskLong); err != nil {
			return true, 0, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("ask Slurm whether job %s has a cluster of 'berth up': %w", job.ID, err))
		}
		if head == "" {
			return false, 0, nil
		}
	case !ok:
		return false, 0, nil
	}
	if err := options.CheckUse(); err != nil {
		return true, 0, err
	}
	if head != "" {
		code, err = runOnHead(ctx, options, job, head)
		return true, code, err
	}
	u := newUser(options, onHead{cluster})
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if inJob {
		u.allocation = allocation.New(job, options.Log)
		go u.allocation.Inquire(ctx, giveUp)
	}
	code, err = u.run(ctx)
	return true, code, err
}

// awaitHead returns the cluster c once its head is one of the job's nodes. If the head was
// lost, another node may lead the cluster some seconds later. ok is false if the cluster
// ended instead. After persistentLimit, awaitHead returns c as it is.
func awaitHead(ctx context.Context, options Options, job string, c persistent.Cluster) (found persistent.Cluster, ok bool) {
	has, err := slurm.JobNodes(ctx, job, slurm.AskLong)
	if err != nil || slices.Contains(has, c.Head) {
		return c, true // srun reports what is wrong
	}
	options.Log.Info("node " + c.Head + ", which led the cluster, is lost; waiting until another one leads it")
	ctx, cancel := context.WithTimeout(ctx, persistentLimit)
	defer cancel()
	for found, ok = c, true; ok && found.Head == c.Head; {
		select {
		case <-ctx.Done():
			return c, true
		case <-time.After(headPoll):
		}
		found, ok = persistent.Find(rundir.MemoryPlaces(options.Getenv), jobOf(options.Getenv))
	}
	return found, ok
}

// CheckUse returns an error for invalid options, and for options that only the start of a
// cluster could consider. Its exit code is Usage.
func (o Options) CheckUse() error {
	if err := o.Spec.Validate(); err != nil {
		return exitcode.Wrap(exitcode.Usage, err)
	}
	if len(o.Shape) > 0 {
		return exitcode.Wrap(exitcode.Usage, fmt.Errorf("run on the cluster that is up: --%s configures a new cluster; give it to 'berth up', or start a separate cluster with --own-cluster", strings.Join(o.Shape, ", --")))
	}
	return nil
}

// runOnHead runs this command again in a step on the head of the job's cluster,
// and returns its exit code. The step uses the job's processors and memory, which
// a login host would lack, and Slurm accounts for them.
func runOnHead(ctx context.Context, options Options, job slurm.Job, head string) (int, error) {
	srun, self, err := findSrun(job)
	if err != nil {
		return 0, err
	}
	options.Log.Debug("starting a step on " + head + ", the head of the cluster that is up")
	name := ownStepName()
	command := slurm.NodeStepCommand(job, head, name, append([]string{self}, os.Args[1:]...)...)
	env := append(slurm.StepEnv(os.Environ()), options.hop())
	return newStep(options, job, name).run(ctx, srun, command, env)
}

// usable is a persistent cluster that a run uses.
type usable interface {
	AwaitReady(ctx context.Context) (persistent.Facts, error)
	Kubeconfig() string
	// Ended is closed when the cluster is gone or unreachable. Reason returns the
	// cause.
	Ended() <-chan struct{}
	Reason() error
	BringImages(ctx context.Context, images []string) error
}

// onHead is a cluster of 'berth up', used on its head.
type onHead struct{ persistent.Cluster }

func (onHead) Reason() error { return persistent.ErrEnded }

// user is a run that uses a persistent cluster.
type user struct {
	userWorkload
	cluster usable
}

func newUser(options Options, cluster usable) *user {
	return &user{userWorkload{Options: options}, cluster}
}

// run runs the workload and then removes the objects that it applied.
func (u *user) run(ctx context.Context) (code int, err error) {
	outlivePipes()
	u.Report(StepPersistent)
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	if err := command.Check(u.Spec.Command); err != nil {
		return 0, err
	}
	objects, archives, err := readWorkload(u.Options)
	if err != nil {
		return 0, err
	}
	starting, cancel := context.WithTimeoutCause(ctx, persistentLimit, fmt.Errorf("it has been starting for %s", persistentLimit))
	defer cancel()
	facts, err := u.cluster.AwaitReady(starting)
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, err)
	}
	go func() {
		select {
		case <-u.cluster.Ended():
			giveUp(exitcode.Wrap(exitcode.Unavailable, u.cluster.Reason()))
		case <-ctx.Done():
		}
	}()
	kubeconfig, err := os.ReadFile(u.cluster.Kubeconfig())
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Unavailable, err)
	}
	if err := u.connect(kubeconfig); err != nil {
		return 0, err
	}
	u.client.Share()
	u.Report("cluster")
	if err := u.bringImages(ctx, archives); err != nil {
		if ctx.Err() != nil {
			err = u.allocation.Reason(context.Cause(ctx))
		}
		return 0, err
	}
	defer func() {
		if problem := u.leave(ctx); problem != nil && err == nil {
			u.Log.Warn(problem.Error())
		}
	}()
	u.Crash.Note(crash.Note{Process: "berth", Lost: lostFollow})
	if u.objects, err = u.client.Apply(ctx, objects); err != nil {
		if ctx.Err() != nil {
			return 0, u.allocation.Reason(context.Cause(ctx))
		}
		return 0, exitcode.Wrap(exitcode.Manifest, err)
	}
	u.Report("workload")
	work, end := allocation.WithGrace(ctx, u.askToEnd)
	if len(u.Spec.Command) > 0 {
		tools := command.Tools{Kubeconfig: u.cluster.Kubeconfig(), Cache: facts.Cache, Bin: facts.Bin}
		code, err = u.runCommand(work, tools, nil)
	} else {
		code, err = u.follow(work, facts.IDs, giveUp)
	}
	end()
	u.getCommand().Wait()
	if ctx.Err() != nil {
		return 0, u.allocation.Reason(context.Cause(ctx))
	}
	return code, err
}

// askToEnd asks the command and the applied objects to end.
func (u *user) askToEnd(ctx context.Context, cause error) {
	u.end(ctx, cause, func(ctx context.Context, _ time.Duration) {
		if !u.Keep {
			_ = u.client.Remove(ctx, u.objects) // leave reports errors
		}
	})
}

// leave removes the applied objects unless the user wants to keep them. If a
// signal cuts the removal short, the cluster completes it.
func (u *user) leave(ctx context.Context) error {
	select {
	case <-u.cluster.Ended():
		return nil
	default:
	}
	if u.Keep || len(u.objects) == 0 {
		return nil
	}
	limit := leaveLimit
	if ctx.Err() != nil {
		limit = 0
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if err := u.client.Remove(ctx, u.objects); err != nil && limit > 0 {
		return fmt.Errorf("some objects of the run still exist: %w", err)
	}
	return nil
}

// leaveLimit bounds the removal of a run's objects. It is longer than the default grace
// period of a pod.
const leaveLimit = allocation.MaxGrace + 5*time.Second

// bringImages sends the archives of a run to the running cluster that it uses.
func (u *user) bringImages(ctx context.Context, archives []archive.Archive) error {
	if len(archives) == 0 {
		return nil
	}
	var images []string
	for _, a := range archives {
		image := a.Path
		if a.Name != "" {
			image = a.Name + "=" + image
		}
		images = append(images, image)
	}
	err := u.cluster.BringImages(ctx, images)
	if refusal, ok := errors.AsType[*persistent.Refusal](err); ok {
		return exitcode.Wrap(refusal.Code, refusal)
	}
	if err == nil {
		u.Report("images")
	}
	return exitcode.Wrap(exitcode.Unavailable, err)
}
