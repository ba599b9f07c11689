package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/dnsconf"
	"berth.dev/berth/internal/egress"
	"berth.dev/berth/internal/nodes"
	"berth.dev/berth/internal/probe"
	"berth.dev/berth/internal/rendezvous"
	"berth.dev/berth/internal/rundir"
	"berth.dev/berth/internal/runtimeconf"
	"berth.dev/berth/internal/sandbox"
	"berth.dev/berth/internal/slurm"
	"berth.dev/berth/internal/workload"
)

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

func (r *run) inspectHost(ctx context.Context) (err error) {
	if shared := r.Spec.SharedVolumes; shared != "" && !writable(shared) {
		return fail(ExitNoInput, fmt.Errorf("use %s for shared volumes: it is no folder on this node that you may write to", shared))
	}
	roles := uint64(headMemory)
	if !r.team.leads() {
		roles = workerMemory
	}
	r.host, err = inspect(ctx, r.Spec, r.Getenv, roles)
	if err == nil && r.team != nil {
		r.host.name = r.team.config.Node
	}
	if warning := r.allocation.warnings(r.host.cpus.Count, r.host.memory.Bytes); err == nil && warning != "" {
		r.Log.Warn(warning)
	}
	if err == nil && r.host.ids.OneUID {
		r.Log.Warn("pods run with one user id only: " + r.host.ids.Reason + "; runAsUser and file ownership in images are not honoured")
	}
	if err == nil && r.host.state.Kind == probe.KindMemory {
		r.Log.Warn(fmt.Sprintf("the run's files are in memory (%s), which counts as the job's: a quarter of it is kept for them; --state-dir DIR names a local disk", r.host.state.Path))
	}
	return err
}

func (r *run) makeDirectories(context.Context) (err error) {
	memory := memoryDir(r.Getenv)
	if memory == "" {
		return fail(ExitUnavailable, errors.New("find a place in memory for the kubeconfig: neither XDG_RUNTIME_DIR nor /dev/shm can be written"))
	}
	if err := r.host.removeStale(r.host.state.Path, memory); err != nil {
		r.Log.Warn("leftovers of an earlier run stay: " + err.Error())
	}
	if r.scratch, err = rundir.Create(r.host.state.Path, r.host.runID); err != nil {
		return fail(ExitNoSpace, err)
	}
	if r.private, err = rundir.Create(memory, r.host.runID+"-private"); err != nil {
		return fail(ExitNoSpace, err)
	}
	if err := r.debug().open(); err != nil {
		return fail(ExitNoSpace, err)
	}
	for _, name := range []string{"log", "kubelet", "volumes", "pod-logs", "var-log", "cni", "tmp"} {
		if err := os.Mkdir(filepath.Join(r.scratch.Path, name), 0o755); err != nil {
			return fail(ExitNoSpace, fmt.Errorf("make run directory: %w", err))
		}
	}
	return nil
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

func (r *run) kubeconfigPath() string { return filepath.Join(r.private.Path, "kubeconfig") }

func (r *run) debug() debugDir { return debugDir(r.Spec.DebugDir) }

// log is the file of a role's log: where the user wants to keep it, or in the
// run's directory, with which it goes.
func (r *run) log(role string) string {
	dir := r.scratch.Path
	if r.Spec.DebugDir != "" {
		dir = r.Spec.DebugDir
	}
	return filepath.Join(dir, "log", role+".log")
}

func (r *run) startSandbox(ctx context.Context) error {
	files, err := r.sandboxFiles()
	if err != nil {
		return err
	}
	addresses := r.plan.Addresses
	bits := addresses.Nodes.Bits()
	var between *sandbox.Mesh
	if r.team != nil {
		// Other nodes' addresses of the same range are elsewhere.
		bits = addresses.Node.BitLen()
		between = &sandbox.Mesh{
			Link: cluster.MeshLink, Queues: len(r.team.sockets.packets), MTU: r.plan.PodMTU,
			Routes: []netip.Prefix{addresses.Pods, addresses.Nodes},
		}
	}
	r.box, err = sandbox.Start(ctx, sandbox.Config{
		Hostname: r.plan.Node.Name,
		IDMap:    r.host.sandboxIDs(),
		Run:      r.plan.Paths.Run,
		Keep:     []string{r.plan.Paths.Libexec, r.scratch.Path},
		Binds: map[string]string{
			r.plan.Paths.Kubelet: filepath.Join(r.scratch.Path, "kubelet"),
			"/var/log":           filepath.Join(r.scratch.Path, "var-log"),
			// Where libcni remembers what it did; the path is fixed in it.
			"/var/lib/cni": filepath.Join(r.scratch.Path, "cni"),
		},
		Files:      files,
		ResolvConf: r.plan.Paths.ResolvConf(),
		Network: sandbox.Network{
			NodeLink:      cluster.NodeLink,
			NodeAddresses: prefixes(bits, addresses.Node, addresses.DNS),
			EgressLink:    cluster.EgressLink,
			MTU:           cluster.LocalMTU,
			Gateway:       addresses.Gateway,
			Source:        addresses.Node,
			Mesh:          between,
			Listen:        anyAddress(addresses.APIPort),
		},
		Cgroup: r.cgroupPath(),
		Log:    r.log("sandbox"),
		Remove: []string{r.scratch.Path, r.private.Path},
		Prune:  []string{filepath.Dir(r.scratch.Path), filepath.Dir(r.private.Path)},
	}, r.scratch.Lock)
	if err != nil {
		return fail(ExitUnavailable, err)
	}
	r.watching = make(chan struct{})
	go r.watchSandbox()
	go r.crew.watch(ctx)
	return nil
}

func (r *run) watchSandbox() {
	defer close(r.watching)
	err := r.box.Events(func(event sandbox.Event) {
		switch event.Kind {
		case sandbox.Exited:
			r.crew.ended(event.Name, event.Status)
		case sandbox.Failed:
			r.crew.failed(event.Name, event.Error)
		case sandbox.Stopped:
			r.crew.resumed(event.Name)
		}
	})
	if err != nil {
		r.crew.giveUp(fail(ExitInternal, err))
	}
}

// sandboxFiles are the files on the sandbox's tmpfs.
func (r *run) sandboxFiles() (map[string]sandbox.File, error) {
	files := r.identities.nodes[0]
	encoded, err := json.MarshalIndent(r.plan, "", "  ")
	if err != nil {
		return nil, err
	}
	paths := r.plan.Paths
	for path, content := range map[string][]byte{
		paths.Plan():                          encoded,
		paths.ContainerdConfig():              runtimeconf.Containerd(r.plan),
		paths.CNIConfig() + "/berth.conflist": runtimeconf.CNI(r.plan),
		paths.Corefile():                      dnsconf.Corefile(r.plan),
		paths.ResolvConf():                    r.resolvConf(),
	} {
		files[path] = sandbox.File{Mode: 0o644, Content: content}
	}
	for path, content := range runtimeconf.RegistryHosts(r.plan) {
		files[path] = sandbox.File{Mode: 0o644, Content: content}
	}
	maps.Copy(files, r.pulls.files(paths.Run))
	return files, r.debug().keepConfig(files)
}

// resolvConf is what programs inside, and pods with dnsPolicy Default, ask for
// names: the gateway, which asks the host's resolvers, and the host's search
// list.
func (r *run) resolvConf() []byte {
	text := fmt.Sprintf("nameserver %s\n", r.plan.Addresses.Gateway)
	resolvers, err := egress.HostResolvers("/etc/resolv.conf")
	if err == nil && len(resolvers.Search) > 0 {
		text += "search"
		for _, domain := range resolvers.Search {
			text += " " + domain
		}
		text += "\n"
	}
	return []byte(text)
}

// startRoles starts all of them at once. None waits for another: the API
// server's listeners exist already, so early clients queue there.
func (r *run) startRoles(ctx context.Context) error {
	paths := r.plan.Paths
	program := func(name string) string { return filepath.Join(paths.Libexec, name) }
	var roles []*role
	if r.plan.Head() {
		roles = append(roles, inSandbox(r.box, &role{
			name: "control", path: program("berth-kube"),
			args:      []string{"control", "--plan", paths.Plan(), "--notify-fd", "3", "--listener-fd", "4", "--listener-fd", "5"},
			listeners: []*os.File{r.box.Listener, r.apiDoor},
		}))
	}
	roles = append(roles,
		inSandbox(r.box, &role{
			name: "containerd", path: program("containerd"),
			args: []string{"--config", paths.ContainerdConfig(), "--notify-fd", "3"},
			env:  roleEnv(r.plan, r.pulls.runtimeEnv(paths.Run, r.Getenv)...),
		}),
		inSandbox(r.box, &role{
			name: "node", path: program("berth-kube"),
			args: []string{"node", "--plan", paths.Plan(), "--notify-fd", "3"},
		}),
		inSandbox(r.box, &role{
			name: "dns", path: program("coredns"),
			args: []string{"-conf", paths.Corefile()},
			env:  roleEnv(r.plan, "BERTH_NOTIFY_FD=3", "BERTH_DNS_ADDRESS="+netip.AddrPortFrom(r.plan.Addresses.DNS, 53).String()),
		}),
	)
	if r.box.TUN != nil {
		net, err := netRole(r.plan, r.box, r.team, r.crew)
		if err != nil {
			return err
		}
		roles = append(roles, net)
	} else {
		r.Log.Warn("pods cannot reach the outside: this host has no usable /dev/net/tun; an administrator can run: modprobe tun && chmod 0666 /dev/net/tun")
	}
	for _, role := range roles {
		role.log = r.log(role.name)
		if role.env == nil {
			role.env = roleEnv(r.plan)
		}
		if err := r.crew.add(role); err != nil {
			return fail(ExitInternal, err)
		}
	}
	return nil
}

func (r *run) awaitCluster(ctx context.Context, giveUp context.CancelCauseFunc) error {
	if err := r.crew.await(ctx, "control"); err != nil || r.team == nil {
		return err
	}
	keeper, err := nodes.NewKeeper(r.identities.own)
	if err != nil {
		return err
	}
	return r.team.attend(ctx, keeper, r.Spec.FailFast, giveUp)
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
	if err != nil && ctx.Err() != nil {
		return r.allocation.reason(context.Cause(ctx))
	}
	return err
}

// takeDown undoes everything, whatever was reached.
func (r *run) takeDown() error {
	if r.down {
		return nil
	}
	r.down = true
	start := time.Now()
	r.crew.dismiss()
	if !r.team.awaited() {
		r.team.leave("the run has ended")
	}
	r.siblings.end()
	if kept := r.getKeeper(); kept != nil {
		// The command's leftovers may take a moment; the cluster goes meanwhile.
		kept.end(orphanGrace)
	}
	if r.apiDoor != nil {
		r.apiDoor.Close()
	}
	if r.identities.key != nil {
		r.identities.key.Close()
	}
	var err error
	if r.box != nil {
		err = errors.Join(r.debug().keepPodLogs(r.plan.Paths.PodLogs()), r.box.Close())
		<-r.watching
		r.crew.endOutside()
		if kept := r.getKeeper(); kept != nil {
			kept.wait()
		}
		endOrphans()
	} else {
		for _, dir := range []*rundir.Dir{r.scratch, r.private} {
			if dir != nil {
				err = errors.Join(err, os.RemoveAll(dir.Path))
			}
		}
	}
	err = errors.Join(err, r.removeCgroup())
	for _, dir := range []*rundir.Dir{r.scratch, r.private} {
		if dir != nil {
			dir.Lock.Close()
			// Another run's directory may be there; then it stays.
			_ = os.Remove(filepath.Dir(dir.Path))
		}
	}
	r.Log.Debug("taken down", "took", time.Since(start))
	if err != nil {
		return fail(ExitInternal, fmt.Errorf("take the cluster down: %w", err))
	}
	return nil
}
