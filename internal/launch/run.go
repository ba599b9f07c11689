package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/nodes"
	"berth.dev/berth/internal/rendezvous"
	"berth.dev/berth/internal/rundir"
	"berth.dev/berth/internal/sandbox"
	"berth.dev/berth/internal/slurm"
	"berth.dev/berth/internal/workload"
)

// signalDelay is how much later than its parts the run may hear of a signal.
const signalDelay = 100 * time.Millisecond

// Options are what a run gets from the command line and its surroundings.
type Options struct {
	Spec   cluster.Spec
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Getenv func(string) string
	// Report is called when a step of the bring-up is done.
	Report func(step string)
	// Log receives what the user should know.
	Log *slog.Logger
}

// Run brings a cluster up, runs the workload on it and takes everything down.
// It returns the workload's exit code; an error, with the code that ExitCode
// gives it, says what kept the workload from a result. The context's cause
// ends the run.
func Run(ctx context.Context, options Options) (code int, err error) {
	job, inJob := slurm.Here()
	if inJob && needsStep(job) {
		return 0, becomeStep(options, job)
	}
	if inJob && !job.Acts() {
		options.Log.Debug("another task of this node does the work; this one idles")
		return 0, idle(ctx, options.Getenv)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	order, err := readSiblingOrder(options.Getenv, giveUp)
	if err != nil {
		return 0, err
	}
	team, err := newTeam(job, options, &order)
	if err != nil {
		return 0, err
	}
	// After all is taken down: it can take a while until the others come.
	defer func() { team.turnAway(err) }()
	r := &run{team: team, labels: nodeLabels(job)}
	if team.leads() {
		err = r.readInput(options)
	} else {
		options.Log = slog.New(fromNode{options.Log.Handler(), team.config.Node})
		team.log = options.Log
		options.Report = func(string) {}
	}
	if err != nil {
		return 0, err
	}
	// The sandbox's processes have another working directory.
	for _, path := range []*string{&options.Spec.DebugDir, &options.Spec.SharedVolumes} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return 0, err
		}
	}
	if options.Spec.DebugDir != "" && team != nil {
		// All nodes may see the same folder.
		options.Spec.DebugDir = filepath.Join(options.Spec.DebugDir, team.config.Node)
	}
	r.Options = options
	if inJob {
		r.allocation = &allocation{job: job, log: options.Log, ask: slurm.AskSlurm, now: time.Now, end: job.End}
		if err := r.allocation.check(); err != nil {
			return 0, err
		}
		go r.allocation.inquire(ctx, giveUp)
		go watchStepd(ctx, options.Getenv, giveUp)
	}
	r.crew = newCrew(options.Log, options.Report, giveUp)
	outlivePipes()
	r.crew.keepLogs = options.Spec.DebugDir != ""
	defer func() { err = errors.Join(err, r.takeDown()) }()
	if order.Index == 0 && options.Spec.NodesPerHost > 1 {
		if r.siblings, err = startSiblings(order, options.Spec.NodesPerHost-1); err != nil {
			return 0, err
		}
	}
	if !team.leads() {
		return 0, r.work(ctx)
	}
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"host", r.inspectHost},
		{"directories", r.makeDirectories},
		{"plan", r.makePlan},
		{"sandbox", r.startSandbox},
		{"roles", r.startRoles},
		{"images", r.importImages},
		{"cluster", func(ctx context.Context) error { return r.awaitCluster(ctx, giveUp) }},
		{"workload", r.applyObjects},
	} {
		if err := step.do(ctx); err != nil {
			return 0, r.explain(ctx, err)
		}
		options.Report(step.name)
	}
	work, end := r.withGrace(ctx)
	if len(options.Spec.Command) > 0 {
		code, err = r.runCommand(work)
	} else {
		code, err = r.follow(work)
	}
	end()
	if ctx.Err() != nil {
		// What a workload answers that was told to end is no result.
		return 0, r.allocation.reason(context.Cause(ctx))
	}
	return code, err
}

// run is the state of one run. A step fills in what later ones use; takeDown
// undoes what is there.
type run struct {
	Options
	ending
	objects []workload.Object
	// archives are those of the head, also on the other nodes, which get them
	// from source.
	archives []archive
	source   archiveSource
	crew     *crew
	team     *team // nil for a run on one node
	// siblings are this host's further nodes, nil without any.
	siblings *siblings
	labels   map[string]string

	host       host
	scratch    *rundir.Dir // on disk
	private    *rundir.Dir // in memory, for the user's kubeconfig
	plan       cluster.Plan
	pulls      pulls
	identities identities
	apiDoor    *os.File
	box        *sandbox.Sandbox
	cgroup     *sandbox.Cgroup // nil where none was delegated
	client     *workload.Client
	down       bool
	// watching ends when the sandbox's events do.
	watching chan struct{}
}

// readInput reads and checks everything that the user named, before anything
// is started.
func (r *run) readInput(options Options) (err error) {
	if err := options.Spec.Validate(); err != nil {
		return fail(ExitUsage, err)
	}
	if err := checkCommand(options.Spec.Command); err != nil {
		return err
	}
	if r.archives, err = findArchives(options.Spec.Images); err != nil {
		return fail(ExitNoInput, err)
	}
	r.objects, err = workload.Read(options.Spec.Manifests, options.Stdin)
	var missing *os.PathError
	if errors.As(err, &missing) {
		return fail(ExitNoInput, err)
	}
	return fail(ExitManifest, err)
}

func (r *run) makePlan(ctx context.Context) (err error) {
	offers := make([]cluster.Offer, 1)
	if r.team != nil {
		if r.team.listener, err = rendezvous.Listen(ctx, r.team.config); err != nil {
			return fail(ExitUnavailable, err)
		}
		if offers, err = r.team.gather(ctx, r.host.cpus.Count); err != nil {
			return err
		}
	}
	var port uint16
	if r.apiDoor, port, err = loopbackListener(); err != nil {
		return err
	}
	offer, err := r.host.offer(r.scratch.Path, port, r.labels)
	if err != nil {
		return err
	}
	if err := r.makeCgroup(); err != nil {
		return err
	}
	offer.CgroupsDelegated, offer.MeshMTU = r.cgroup != nil, offers[0].MeshMTU
	offers[0] = offer
	plans, err := cluster.Design(r.Spec, offers)
	if err != nil {
		return fail(ExitUnavailable, err)
	}
	r.plan = plans[0]
	r.pulls = readPulls(r.plan, r.Getenv)
	for _, notice := range r.pulls.notices {
		r.Log.Warn(notice)
	}
	if r.identities, err = makeIdentities(plans); err != nil {
		return err
	}
	kubeconfig := r.kubeconfigPath()
	if err := os.WriteFile(kubeconfig, r.identities.kubeconfig, 0o600); err != nil {
		return fail(ExitNoSpace, fmt.Errorf("write kubeconfig: %w", err))
	}
	if r.client, err = workload.NewClient(r.identities.own); err != nil || r.team == nil {
		return err
	}
	return r.team.handOver(ctx, plans, r.identities.nodes, r.archives)
}

func (r *run) awaitCluster(ctx context.Context, giveUp context.CancelCauseFunc) error {
	if err := r.crew.await(ctx, "control"); err != nil || r.team == nil {
		return err
	}
	keeper := nodes.NewKeeper(r.client.Dynamic())
	if err := r.team.attend(ctx, keeper, r.Spec.FailFast, giveUp); err != nil {
		return err
	}
	if err := r.crew.await(ctx, "node"); err != nil {
		return err
	}
	return keeper.AwaitAll(ctx, len(r.team.config.Nodes))
}

func (r *run) applyObjects(ctx context.Context) error {
	applied, err := r.client.Apply(ctx, r.objects)
	if err != nil && ctx.Err() == nil {
		return fail(ExitManifest, err)
	}
	r.objects = applied
	return err
}

func (r *run) follow(ctx context.Context) (int, error) {
	result, err := r.client.Follow(ctx, r.objects, workload.Streams{
		Out: &output{r.Stdout, r.crew.giveUp}, Err: &output{r.Stderr, r.crew.giveUp},
		Note:   func(text string) { r.Log.Warn(text) },
		NoPull: r.Spec.NoPull,
	})
	var stuck *workload.NeverStarts
	if errors.As(err, &stuck) {
		return 0, fail(ExitNeverStarts, err)
	}
	if err == nil && result.Code != 0 && !r.asked.Load() {
		r.Log.Warn(result.Reason)
	}
	return result.Code, err
}

// explain replaces the error of a step that was cut short by the reason that
// the run was given up for.
func (r *run) explain(ctx context.Context, err error) error {
	// Slurm signals all processes of a step, and a part may be faster to end
	// than this one to hear of it.
	select {
	case <-ctx.Done():
		return r.allocation.reason(context.Cause(ctx))
	case <-time.After(signalDelay):
		return err
	}
}
