package launch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/nodeloss"
	"berth.dev/berth/internal/kube/workload"
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
// result, and exitcode.Of returns its code. The end of ctx ends the run, and its
// cause is the reason.
func Run(ctx context.Context, options Options) (code int, err error) {
	began := newPhases()
	job, inJob := slurm.Here()
	if !options.Spec.Stay && options.Spec.KSI == nil && !options.Own {
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
	if inJob && (needsStep(job) || options.Spec.Stay && !isTask(job, options.Getenv)) {
		return runInStep(ctx, options, job)
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	slurm.KeepPMI(options.Getenv)
	if inJob && !job.Acts() {
		options.Log.Debug("another task of this node does the work; this one idles")
		if err := options.Crash.Close(); err != nil { // one process less for each task
			return 0, err
		}
		return 0, idle(ctx, job, options)
	}
	order, err := members.ReadLocalConfig(options.Getenv, giveUp)
	if err != nil {
		return 0, err
	}
	all, err := members.New(ctx, job, members.Options{Spec: options.Spec, Getenv: options.Getenv, Log: options.Log}, &order)
	if err != nil {
		return 0, err
	}
	// Decline after the cluster is taken down, since it can take a while until
	// the other nodes connect.
	defer func() { code, err = all.Decline(ctx, code, err) }()
	r := &run{members: all, localConfig: order, labels: allocation.NodeLabels(job), began: began}
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
	// The sandbox's processes have another working directory.
	here, err := os.Getwd()
	if err != nil {
		return 0, fmt.Errorf("find the working directory: %w", err)
	}
	options.Spec.Absolute(here)
	if element := options.Getenv("SLURM_ARRAY_TASK_ID"); options.Spec.DebugDir != "" && element != "" {
		// All elements of an array have the same command line.
		options.Spec.DebugDir = filepath.Join(options.Spec.DebugDir, element)
	}
	if options.Spec.DebugDir != "" && all.Several() {
		// All nodes may see the same folder.
		options.Spec.DebugDir = filepath.Join(options.Spec.DebugDir, all.Name())
	}
	r.Options = options
	if inJob {
		r.allocation = allocation.New(job, options.Log)
		r.allocation.Early = options.Spec.Grace
		if err := r.allocation.Check(); err != nil {
			return 0, err
		}
		if all.Leads() {
			// A thousand nodes that ask at once would overload Slurm.
			go r.allocation.Inquire(ctx, giveUp)
		}
		go allocation.WatchStepd(ctx, options.Getenv, giveUp)
	}
	options.Report = r.began.note(options.Report)
	r.supervisor = supervisor.New(options.Log, options.Report, giveUp)
	outlivePipes()
	r.supervisor.KeepLogs = options.Spec.DebugDir != ""
	defer func() {
		var told *toldToEnd
		if errors.As(err, &told) {
			code, err = 0, nil
		}
		err = errors.Join(err, r.takeDown())
		r.allocation.Requeue()
	}()
	if !all.Leads() {
		return r.work(ctx)
	}
	r.start.list = []step{
		// The other nodes of this host end at the same time as this one.
		{name: "host", do: r.inspectHost, stop: r.endLocalMembers},
		// Only the net role then holds the listeners. It ends with the sandbox, and
		// clients are refused.
		{name: "ports", do: r.publish, stop: r.closePorts},
		// The janitor deletes the directories, so their locks are released last.
		{name: "directories", do: r.makeDirectories, undo: r.leaveDirectories},
		{name: "state", do: r.openState, undo: r.closeState},
		// A cluster that ends accepts no more requests to end.
		{name: "control socket", do: func(ctx context.Context) error { return r.listenForDown(ctx, giveUp) }, stop: r.closeControl},
		// The other nodes begin to end at once, and the API server's clients are
		// refused when the control plane has ended.
		{name: "plan", do: r.makePlan, stop: r.leaveMembers, undo: r.dropPlan},
		{name: "sandbox", do: r.startSandbox, undo: r.closeSandbox},
		// Roles that end from now on have not failed.
		{name: "roles", do: r.startRoles, stop: r.stopRoles},
		{name: "images", do: r.importImages},
		{name: "late node", do: r.startLateNode},
		{name: "cluster", do: r.awaitCluster},
		{name: "workload", do: r.applyObjects},
	}
	if err := r.start.run(ctx, options.Report); err != nil {
		return 0, r.explain(ctx, err)
	}
	r.keepState()
	work, end := allocation.WithGrace(ctx, r.askToEnd)
	switch {
	case options.Spec.Stay:
		err = r.stayUp(work)
	case len(options.Spec.Command) > 0:
		code, err = r.runCommand(work)
	default:
		code, err = r.follow(work)
	}
	end()
	r.finishState()
	if ctx.Err() != nil {
		// The exit code of a workload that was asked to end is not a result.
		return 0, r.allocation.Reason(context.Cause(ctx))
	}
	r.members.ReportLosses()
	return code, err
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
	if nodes := r.members.Size(); options.Spec.HighlyAvailable && nodes < cluster.ControlNodes {
		return exitcode.Wrap(exitcode.Config, fmt.Errorf("run on %d nodes: %w", nodes, cluster.ErrTooFewNodes))
	}
	r.objects, r.archives, err = readWorkload(options)
	return err
}

func (r *run) makePlan(ctx context.Context) (err error) {
	offers, err := r.members.Gather(ctx, r.host.cpus.Count)
	if err != nil {
		return err
	}
	var port uint16
	if r.apiListener, port, err = loopbackListener(); err != nil {
		return err
	}
	offer, err := r.host.offer(r.scratch.Path, port, r.labels)
	if err != nil {
		return err
	}
	if err := r.makeCgroup(); err != nil {
		return err
	}
	offer.CgroupsDelegated, offer.MeshMTU, offer.FastPath = r.cgroup != nil, offers[0].MeshMTU, r.hasSwitch()
	offers[0] = offer
	plans, err := cluster.Design(r.Spec, offers)
	if err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	if len(plans) > 1 {
		for i := range plans {
			plans[i].PodSuperPacket = overlay.MaxSuperPacket(plans[i].PodMTU)
		}
	}
	r.plan = plans[0]
	if unlike := cluster.UnlikeOwners(r.Spec, offers); unlike != "" {
		r.Log.Warn(unlike)
	}
	r.tellFamilies(offers)
	r.pulls = pulls.Read(ctx, r.plan, r.Getenv)
	for _, notice := range r.pulls.Notices {
		r.Log.Warn(notice)
	}
	if r.identities, err = identity.Make(plans, r.contextName()); err != nil {
		return err
	}
	if err := r.writeKubeconfig(); err != nil {
		return err
	}
	r.kubeconfig = r.identities.Owns[0]
	if r.client, err = workload.NewClient(r.kubeconfig); err != nil || !r.members.Several() {
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
	r.monitor = r.members.Monitor(ctx, r.monitorConfig(r.supervisor.GiveUp))
	return nil
}

// tellFamilies explains why pods have only one address family, or no access to
// the outside with IPv6.
func (r *run) tellFamilies(offers []cluster.Offer) {
	refused := func(offer cluster.Offer) bool { return offer.RefusedIPv6 != "" }
	switch without := r.plan.Addresses.WithoutIPv6; {
	case without == "":
	case r.plan.Addresses.IPv6 != nil:
		r.Log.Warn("pods have IPv6 addresses, but do not reach the outside from them: " + without)
	case slices.ContainsFunc(offers, refused):
		r.Log.Warn("pods have only IPv4 addresses: " + without)
	default: // IPv6 that the host does not have either
		r.Log.Debug("pods have only IPv4 addresses: " + without)
	}
}

func (r *run) awaitCluster(ctx context.Context) error {
	if err := r.supervisor.Await(ctx, "control"); err != nil {
		return err
	}
	if r.members.Several() {
		if err := r.monitor.Await(ctx); err != nil {
			return err
		}
	} else if len(r.Spec.Command) == 0 && !r.Spec.Stay {
		return nil // its pods wait for the only node anyway
	}
	if err := r.supervisor.Await(ctx, "node"); err != nil {
		return err
	}
	return nodeloss.NewReporter(r.client.Dynamic()).AwaitAll(ctx, r.members.Size())
}

func (r *run) applyObjects(ctx context.Context) error {
	applied, err := r.client.Apply(ctx, r.objects)
	if err != nil && ctx.Err() == nil {
		return exitcode.Wrap(exitcode.Manifest, err)
	}
	r.objects = applied
	if err != nil || !r.members.CanFailOver() {
		return err
	}
	return r.acquireLease(ctx)
}

// runCommand runs the user's command on the host beside the cluster.
func (r *run) runCommand(ctx context.Context) (int, error) {
	tools, err := r.makeTools()
	if err != nil {
		return 0, err
	}
	more, err := r.ksiEnv(ctx)
	if err != nil {
		return 0, err
	}
	return r.userCommand(tools, more).Run(ctx, r.setCommand)
}

func (r *run) follow(ctx context.Context) (int, error) {
	result, err := r.followApart(ctx, r.kubeconfig, r.objects, workload.Streams{
		NoPull: r.Spec.NoPull, IDs: r.host.podIDs(), Progress: r.progress,
	}, r.supervisor.GiveUp)
	return r.result(result, r.asked.Load(), err)
}

// explain returns the reason of the run's end if that cut a step short, instead
// of the step's error.
func (r *run) explain(ctx context.Context, err error) error {
	// Slurm signals all processes of a step. A child may end before this process
	// receives the signal.
	select {
	case <-ctx.Done():
		return r.allocation.Reason(context.Cause(ctx))
	case <-time.After(signalDelay):
		return err
	}
}
