package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/nodeloss"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/command"
	"berth.dev/berth/internal/launch/identity"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/pulls"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/network/overlay"
)

// signalDelay bounds how much later than its children the run may receive a
// signal.
const signalDelay = 100 * time.Millisecond

// Run starts a cluster, runs the workload on it and takes everything down. It
// returns the workload's exit code. An error explains why the workload has no
// result, and exitcode.Of returns its code. The end of ctx ends the run; the error
// is then the cause of ctx.
func Run(ctx context.Context, options Options) (code int, err error) {
	began := newPhases()
	job, inJob := slurm.Here()
	if options.Existing != (Existing{}) {
		return runExisting(ctx, options, job, inJob)
	}
	joins := options.Spec.Join != ""
	if joins {
		if err := checkJoin(options.Spec.Join, job, inJob); err != nil {
			return 0, err
		}
	}
	if !options.Spec.Stay && options.Spec.KSI == nil && !options.Own && !joins {
		if used, code, err := usePersistent(ctx, options, job, inJob); used {
			return code, err
		}
	}
	if options.Keep {
		return 0, exitcode.Wrap(exitcode.Usage, errKeepsNothing)
	}
	if err := checkOutside(ctx, options, inJob); err != nil {
		return 0, err
	}
	if inJob && (needsStep(job, options) || options.Spec.Stay && !isTask(job, options.Getenv)) {
		return runInStep(ctx, options, job)
	}
	slurm.KeepPMI(options.Getenv)
	if inJob && !job.Acts() {
		options.Log.Debug("another task of this node does the work; this one idles")
		if err := options.Crash.Close(); err != nil { // one process less for each task
			return 0, err
		}
		return 0, idle(ctx, job, options)
	}
	return runNode(ctx, options, job, inJob, began)
}

// runNode runs this node of a cluster.
func runNode(ctx context.Context, options Options, job slurm.Job, inJob bool, began phases) (code int, err error) {
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	order, err := members.ReadLocalConfig(options.Getenv, giveUp)
	if err != nil {
		return 0, err
	}
	var all *members.Members
	if options.Spec.Join != "" {
		all, err = meetCluster(ctx, &options, job)
	} else {
		all, err = members.New(ctx, job, members.Options{Spec: options.Spec, Getenv: options.Getenv, Log: options.Log}, &order)
	}
	if err != nil {
		return 0, err
	}
	// Decline after the cluster is taken down, since it can take a while until
	// the other nodes connect.
	defer func() { code, err = all.Decline(ctx, code, err) }()
	r := &run{node: node{members: all, localConfig: order, labels: allocation.NodeLabels(job), began: began}}
	if options.Spec.For != "" {
		r.labels[cluster.ForLabel] = options.Spec.For
	}
	if all.Leads() {
		err = r.readInput(options)
	} else {
		options.Log = slog.New(fromNode{options.Log.Handler(), all.Name()})
		all.SetLog(options.Log)
		options.Report = func(string) {}
	}
	if err != nil {
		return 0, err
	}
	if err := resolvePaths(&options, all); err != nil {
		return 0, err
	}
	options.Report = began.note(options.Report)
	r.Options, r.work.Options = options, options
	if inJob {
		r.allocation = allocation.New(job, options.Log)
		r.allocation.Early, r.work.allocation = options.Spec.Grace, r.allocation
		if all.IsPilot() {
			r.allocation.EarlyShare = pilotGraceShare
		}
		if err := r.allocation.Check(); err != nil {
			return 0, err
		}
		if all.Leads() || all.IsPilot() {
			// A thousand nodes that ask at once would overload Slurm.
			go r.allocation.Inquire(ctx, giveUp)
		}
		go allocation.WatchStepd(ctx, options.Getenv, giveUp)
	}
	r.supervisor = supervisor.New(options.Log, options.Report, giveUp)
	outlivePipes()
	r.supervisor.KeepLogs = options.Spec.DebugDir != ""
	defer func() {
		if errors.As(err, new(*downRequest)) {
			code, err = 0, nil
		}
		err = errors.Join(err, r.takeDown())
		r.allocation.Requeue()
	}()
	if all.Leads() {
		return r.lead(ctx, giveUp)
	}
	return r.takePart(ctx)
}

// resolvePaths makes the paths of the options absolute, because the sandbox's
// processes have another working directory, and gives each node its own directory
// for debugging.
func resolvePaths(options *Options, all *members.Members) error {
	here, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	options.Spec.Absolute(here)
	if options.Spec.DebugDir == "" {
		return nil
	}
	// All elements of an array have the same command line. All nodes may see the
	// same folder.
	options.Spec.DebugDir = filepath.Join(options.Spec.DebugDir, options.Getenv("SLURM_ARRAY_TASK_ID"))
	if all.Several() {
		options.Spec.DebugDir = filepath.Join(options.Spec.DebugDir, all.Name())
	}
	return nil
}

// leadSteps returns the steps of the start of the head.
func (r *run) leadSteps(giveUp context.CancelCauseFunc) []step {
	return []step{
		// The other nodes of this host end at the same time as this one.
		{name: "host", do: r.inspectHost, stop: func() { r.localMembers.End() }},
		// Only the net role then holds the listeners. It ends with the sandbox, and
		// clients are refused.
		{name: "ports", do: r.publish, stop: r.closePorts},
		// The janitor deletes the directories, so their locks are released last.
		{name: "directories", do: r.makeDirectories, undo: func() error { return r.dirs.leave(r.box != nil) }},
		{name: "state", do: r.openState, undo: func() error { return r.saver.close() }},
		// A cluster that ends accepts no more requests to end.
		{name: "control socket", do: func(ctx context.Context) error { return r.listenForDown(ctx, giveUp) }, stop: func() { r.control.Close() }},
		// A cluster that cannot prove itself to nodes of other jobs ends before it starts.
		{name: "proof for seats", do: r.proveSeats, stop: r.closeSeats},
		// The other nodes begin to end at once, and the API server's clients are
		// refused when the control plane has ended.
		{name: "plan", do: r.makePlan, stop: r.leaveMembers, undo: r.dropPlan},
		{name: "sandbox", do: r.startSandbox, undo: r.closeSandbox},
		// Roles that end from now on have not failed.
		{name: "roles", do: r.startRoles, stop: r.stopRoles},
		{name: "images", do: r.importImages},
		{name: "late node", do: r.startLateNode},
		{name: "cluster", do: r.awaitCluster},
		// The workload may have objects of its kinds.
		{name: "slurm jobs", do: r.defineSlurmJobs},
		{name: "workload", do: r.applyObjects, stop: r.stopRenewal},
		{name: "seats", do: r.openSeats},
		{name: "pilots", do: r.servePilots, undo: r.endPilots},
	}
}

// lead runs the head.
func (r *run) lead(ctx context.Context, giveUp context.CancelCauseFunc) (code int, err error) {
	r.start.list = r.leadSteps(giveUp)
	if err := r.start.run(ctx, r.Report); err != nil {
		return 0, explain(ctx, r.allocation, err)
	}
	if r.nodesReturn() {
		r.saver.continuity = r.continuity
	}
	r.saver.start(r.plan.RunID)
	return r.runWorkload(ctx, context.Background())
}

// readInput reads and checks everything that the user named, before anything
// starts.
func (r *run) readInput(options Options) (err error) {
	if err := options.Spec.Validate(); err != nil {
		return exitcode.Wrap(exitcode.Usage, err)
	}
	if err := command.Check(options.Spec.Command); err != nil {
		return err
	}
	if err := checkKSI(options); err != nil {
		return err
	}
	if err := errors.Join(checkSlurmJobs(options.Spec), checkSeats(options.Spec, options.Getenv)); err != nil {
		return err
	}
	if nodes := r.members.Size(); options.Spec.HighlyAvailable && nodes < cluster.ControlNodes {
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("run on %d nodes: %w", nodes, cluster.ErrTooFewNodes))
	}
	r.work.objects, r.archives, err = readWorkload(options)
	return err
}

// openState reads the state of an earlier cluster, before anything starts.
func (r *run) openState(ctx context.Context) (err error) {
	r.saver, err = openState(ctx, r.Options, r.allocation, r.dirs.private.Path)
	return err
}

func (r *run) makePlan(ctx context.Context) (err error) {
	offers, err := r.members.Gather(ctx, r.host.cpus.Count)
	if err != nil {
		return err
	}
	mtu := offers[0].OverlayMTU
	if offers[0], err = r.offer(); err != nil {
		return err
	}
	offers[0].OverlayMTU = mtu
	r.offers = offers
	r.keepAddresses()
	plans, err := cluster.Design(r.Spec, offers)
	if err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	if r.members.Several() {
		for i := range plans {
			plans[i].PodSuperPacket = overlay.MaxSuperPacket(plans[i].PodMTU)
		}
	}
	_, unavailable := exec.LookPath("sbatch")
	plans[0].SubmitsPilots = r.Spec.Seats > 0 && unavailable == nil
	r.plan = plans[0]
	if r.Spec.Seats > 0 {
		if err := r.takeUp(); err != nil {
			return err
		}
	}
	if unlike := cluster.UnlikeOwners(r.Spec, offers); unlike != "" {
		r.Log.Warn(unlike)
	}
	explainFamilies(r.Log, r.plan.Addresses, offers)
	r.pulls = pulls.Read(ctx, r.plan, r.Getenv)
	for _, notice := range r.pulls.Notices {
		r.Log.Warn(notice)
	}
	if r.identities, err = identity.Make(plans, contextName(r.Spec, r.plan), r.trust()); err != nil {
		return err
	}
	if err := r.dirs.writeKubeconfig(r.identities.Kubeconfig); err != nil {
		return err
	}
	if err := r.work.connect(r.identities.Owns[0]); err != nil {
		return err
	}
	if r.canFailOver() {
		if err := r.members.PrepareFailover(offers); err != nil {
			return err
		}
		if err := r.recordControlNodes(); err != nil {
			return err
		}
	}
	if err := r.members.SendPlans(ctx, plans, r.identities, r.archives); err != nil {
		return err
	}
	r.monitor = r.members.Monitor(ctx, r.monitorConfig(ctx, r.supervisor.GiveUp))
	return nil
}

// explainFamilies explains why pods have only one address family, or no access to
// the outside with IPv6.
func explainFamilies(log *slog.Logger, addresses cluster.Addresses, offers []cluster.Offer) {
	refused := func(offer cluster.Offer) bool { return offer.RefusedIPv6 != "" }
	switch without := addresses.WithoutIPv6; {
	case without == "":
	case addresses.IPv6 != nil:
		log.Warn("pods have IPv6 addresses, but do not reach the outside from them: " + without)
	case slices.ContainsFunc(offers, refused):
		log.Warn("pods have only IPv4 addresses: " + without)
	default: // the host has no IPv6 either
		log.Debug("pods have only IPv4 addresses: " + without)
	}
}

func (r *run) awaitCluster(ctx context.Context) error {
	if err := r.supervisor.Await(ctx, "control"); err != nil {
		return err
	}
	if !r.members.Several() && len(r.Spec.Command) == 0 && !r.Spec.Stay {
		return nil // its pods wait for the only node anyway
	}
	if err := r.monitor.Await(ctx); err != nil {
		return err
	}
	if err := r.supervisor.Await(ctx, "node"); err != nil {
		return err
	}
	return nodeloss.NewReporter(r.work.client.Dynamic()).AwaitAll(ctx, r.members.Size())
}

func (r *run) applyObjects(ctx context.Context) error {
	applied, err := r.work.client.Apply(ctx, r.work.objects)
	if err != nil && ctx.Err() == nil {
		return exitcode.Wrap(exitcode.Manifest, err)
	}
	r.work.objects = applied
	if err != nil || !r.members.CanFailOver() {
		return err
	}
	return r.acquireLease(ctx)
}

// runWorkload runs the workload until its end. When ctx ends, the workload gets time
// to end. When the context node ends, runWorkload stops following the workload and
// returns the cause of node.
func (r *run) runWorkload(ctx, node context.Context) (code int, err error) {
	work, end := allocation.WithGrace(ctx, r.askToEnd)
	work, cut := context.WithCancelCause(work)
	defer cut(nil)
	defer context.AfterFunc(node, func() { cut(context.Cause(node)) })()
	switch {
	case r.Spec.Stay:
		err = r.stayUp(work)
	case len(r.Spec.Command) > 0:
		code, err = r.runCommand(work)
	default:
		code, err = r.work.follow(work, r.host.podIDs(), r.supervisor.GiveUp)
	}
	end()
	r.saver.finish()
	switch {
	case node.Err() != nil:
		return 0, context.Cause(node)
	case ctx.Err() != nil:
		// The exit code of a workload that was asked to end is not a result.
		r.members.ReportLosses()
		return 0, r.allocation.Reason(context.Cause(ctx))
	}
	r.members.ReportLosses()
	return code, err
}

// runCommand runs the user's command on the host beside the cluster.
func (r *run) runCommand(ctx context.Context) (int, error) {
	tools, err := r.dirs.tools()
	if err != nil {
		return 0, err
	}
	more, err := ksiEnv(ctx, r.Spec, r.plan, r.work.client, r.ksiPort)
	if err != nil {
		return 0, err
	}
	return r.work.runCommand(ctx, tools, more)
}

// explain returns the reason of the run's end if that cut a step short, instead
// of the step's error.
func explain(ctx context.Context, job *allocation.Allocation, err error) error {
	// Slurm signals all processes of a step. A child may end before this process
	// receives the signal.
	select {
	case <-ctx.Done():
		return job.Reason(context.Cause(ctx))
	case <-time.After(signalDelay):
		return err
	}
}
