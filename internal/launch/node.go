package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/launch/imagecache"
	"berth.dev/berth/internal/launch/layers"
	"berth.dev/berth/internal/launch/members"
	"berth.dev/berth/internal/launch/netrole"
	"berth.dev/berth/internal/launch/supervisor"
	"berth.dev/berth/internal/network/egress"
	"berth.dev/berth/internal/node/containerdconf"
	"berth.dev/berth/internal/node/dnsconf"
	"berth.dev/berth/internal/node/sandbox"
)

// The steps in this file start a node, on the head and on every other host. The
// steps of only the head are in run.go.

func (r *run) inspectHost(ctx context.Context) (err error) {
	if err := raiseLimits(); err != nil {
		return err
	}
	if shared := r.Spec.SharedVolumes; shared != "" && !rundir.Writable(shared) {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use %s for shared volumes: it is not a folder on this node that you may write to", shared))
	}
	if r.members.Several() {
		if err := r.members.UseInterface(r.Spec.Network.Interface); err != nil {
			return exitcode.Wrap(exitcode.Config, err)
		}
	}
	if err := checkMounts(r.Spec); err != nil {
		return err
	}
	if r.Spec.NamesImageCache() {
		if err := imagecache.MakeFolder(r.Spec.ImageCache); err != nil {
			return err
		}
	}
	roles, watchers := uint64(probe.HeadMemory), probe.HeadWatchers
	switch {
	case !r.members.Controls(r.Spec):
		roles, watchers = workerMemory, workerWatchers
	case r.Spec.HighlyAvailable:
		roles = replicaMemory
	}
	if err := checkWatchers(watchers); err != nil {
		return err
	}
	if r.host, err = inspect(ctx, r.Spec, r.Getenv, r.allocation, roles); err == nil {
		err = r.chooseImages(ctx)
	}
	if err == nil && r.members.Several() {
		r.host.name = r.members.Name()
	}
	if err == nil {
		err = r.findDevices()
	}
	if warning := r.allocation.Warnings(r.host.cpus.Count, r.host.memory.Bytes); err == nil && warning != "" {
		r.Log.Warn(warning)
	}
	if err == nil && r.host.ids.OneUID {
		r.Log.Warn("pods run with one user id only: " + r.host.ids.Reason + "; runAsUser and file ownership in images are not honoured")
	}
	if room := r.host.room; err == nil && room.Pods < probe.MaxPods {
		r.Log.Warn(fmt.Sprintf("this node offers %d pods instead of %d: %s; an administrator allows more: %s", room.Pods, probe.MaxPods, room.Limit, room.Remedy.Admin))
	}
	if err == nil && r.host.state.Kind == probe.KindMemory {
		r.Log.Warn(fmt.Sprintf("the run's files are in memory (%s), which counts as the job's: a quarter of it is kept for them; --state-dir DIR names a local disk", r.host.state.Path))
	}
	// Not earlier: only the first node reports what is wrong with the host.
	if further := r.Spec.NodesPerHost - 1; err == nil && r.localConfig.Index == 0 && further > 0 {
		r.localMembers, err = members.StartLocal(r.localConfig, further)
	}
	return err
}

func (r *run) makeDirectories(context.Context) (err error) {
	memory := rundir.Memory(r.Getenv)
	if memory == "" {
		return exitcode.Wrap(exitcode.Unavailable, errors.New("find a place in memory for the kubeconfig: neither XDG_RUNTIME_DIR nor /dev/shm can be written"))
	}
	if err := r.host.removeStale(r.host.state.Path, memory); err != nil {
		r.Log.Warn("leftovers of an earlier run stay: " + err.Error())
	}
	if r.scratch, err = rundir.Create(r.host.state.Path, r.host.runID); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	if r.private, err = rundir.Create(memory, r.host.runID+rundir.PrivateSuffix); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	if !r.members.Leads() {
		if err := r.noteHead(r.members.First()); err != nil {
			return err
		}
	}
	// The first node of a host marks the cluster for all nodes of the host.
	if r.Spec.Stay && r.localConfig.Index == 0 {
		if err := persistent.Mark(r.private.Path); err != nil {
			return exitcode.Wrap(exitcode.NoSpace, err)
		}
		if _, ok := persistent.Before(rundir.MemoryPlaces(r.Getenv), jobOf(r.Getenv), r.private.Path); ok {
			return exitcode.Wrap(exitcode.Config, fmt.Errorf("%w in job %s; 'berth down' ends it", ErrIsUp, jobOf(r.Getenv)))
		}
	}
	if err := r.debug().open(); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	for _, name := range []string{"log", "kubelet", "volumes", "pod-logs", "var-log", "cni", "tmp"} {
		if err := os.Mkdir(filepath.Join(r.scratch.Path, name), 0o755); err != nil {
			return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("make run directory: %w", err))
		}
	}
	return nil
}

// noteHead stores the name of the head, for other processes on this host.
func (r *run) noteHead(name string) error {
	path := filepath.Join(r.private.Path, rundir.HeadFile)
	err := os.WriteFile(path+".new", []byte(name), 0o600)
	if err == nil { // replaced atomically: without a name, the API server would seem to be here
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("record the head's name: %w", err))
	}
	return nil
}

func (r *run) kubeconfigPath() string { return filepath.Join(r.private.Path, rundir.KubeconfigFile) }

// writeKubeconfig writes the user's kubeconfig to the place where programs and
// tunnels look for it.
func (r *run) writeKubeconfig() error {
	if err := os.WriteFile(r.kubeconfigPath(), r.identities.Kubeconfig, 0o600); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("write kubeconfig: %w", err))
	}
	return nil
}

// recordControlNodes writes the names of the other machines with a control plane
// beside the kubeconfig. They still reach the cluster if this machine is lost.
func (r *run) recordControlNodes() error {
	if r.allocation == nil {
		return nil
	}
	var hosts []string
	for _, member := range r.plan.Replicas() {
		if slices.Contains(r.allocation.Job.Nodes, member.Host) {
			hosts = append(hosts, member.Host)
		}
	}
	if err := os.WriteFile(filepath.Join(r.private.Path, rundir.ControlNodesFile), []byte(strings.Join(hosts, "\n")), 0o600); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("write the names of the control planes' nodes: %w", err))
	}
	return nil
}

func (r *run) startSandbox(ctx context.Context) error {
	files, err := r.sandboxFiles()
	if err != nil {
		return err
	}
	queues := len(r.members.Sockets().Packets)
	binds := map[string]string{
		r.plan.Paths.Kubelet: filepath.Join(r.scratch.Path, "kubelet"),
		"/var/log":           filepath.Join(r.scratch.Path, "var-log"),
		// libcni remembers what it did in this fixed path.
		"/var/lib/cni": filepath.Join(r.scratch.Path, "cni"),
	}
	if r.Spec.KSI != nil {
		if binds[ksiApp], err = ksiFolder(*r.Spec.KSI); err != nil {
			return err
		}
	}
	socket := ""
	if r.plan.FastPath {
		socket = r.plan.Paths.FastPath()
	}
	r.noteCrash(lostCluster)
	r.box, err = sandbox.Start(ctx, sandbox.Config{
		Hostname:   r.plan.Node.Name,
		IDMap:      r.host.sandboxIDs(),
		Run:        r.plan.Paths.Run,
		Keep:       []string{r.plan.Paths.Libexec, r.scratch.Path},
		Binds:      binds,
		Files:      files,
		ResolvConf: r.plan.Paths.ResolvConf(),
		Network:    sandboxNetwork(r.plan, queues),
		Socket:     socket,
		Cgroup:     r.cgroupPath(),
		Log:        r.log("sandbox"),
		Remove:     append([]string{r.scratch.Path, r.private.Path}, r.imagesInUse()...),
		Prune:      []string{filepath.Dir(r.scratch.Path), filepath.Dir(r.private.Path)},
	}, r.scratch.Lock)
	if err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	r.watching = make(chan struct{})
	go r.watchSandbox()
	go r.supervisor.Watch(ctx)
	if r.box.TUN != nil {
		if r.box.TUN, err = hostnet.Hold(r.box.TUN); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	for i, queue := range r.box.Mesh {
		if r.box.Mesh[i], err = hostnet.Hold(queue); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	return nil
}

// imagesInUse returns the folder for the images that this node uses while it
// runs.
func (r *run) imagesInUse() []string {
	if folder := r.plan.ImageCache.InUse(); folder != "" {
		return []string{folder}
	}
	return nil
}

func (r *run) watchSandbox() {
	defer close(r.watching)
	err := r.box.Events(func(event sandbox.Event) {
		switch event.Kind {
		case sandbox.Exited:
			r.supervisor.Ended(event.Name, event.Status)
		case sandbox.Failed:
			r.supervisor.Failed(event.Name, event.Error)
		case sandbox.Stopped:
			r.supervisor.Resumed(event.Name)
		}
	})
	if err != nil {
		r.supervisor.GiveUp(exitcode.Wrap(exitcode.Internal, err))
	}
}

// sandboxFiles returns the files on the sandbox's tmpfs.
func (r *run) sandboxFiles() (map[string]sandbox.File, error) {
	files := r.identities.Nodes[0]
	encoded, err := json.MarshalIndent(r.plan, "", "  ")
	if err != nil {
		return nil, err
	}
	paths := r.plan.Paths
	for path, content := range map[string][]byte{
		paths.Plan():                          encoded,
		paths.ContainerdConfig():              containerdconf.Containerd(r.plan),
		paths.CNIConfig() + "/berth.conflist": containerdconf.CNI(r.plan),
		paths.Corefile():                      dnsconf.Corefile(r.plan),
		paths.ResolvConf():                    r.resolvConf(),
	} {
		files[path] = sandbox.File{Mode: 0o644, Content: content}
	}
	if r.restored != nil {
		files[paths.Restore()] = *r.restored
		r.restored = nil // the content may be large
	}
	for name, content := range r.host.devices.Specs {
		files[filepath.Join(paths.CDI(), name)] = sandbox.File{Mode: 0o644, Content: content}
	}
	for path, content := range containerdconf.RegistryHosts(r.plan) {
		files[path] = sandbox.File{Mode: 0o644, Content: content}
	}
	maps.Copy(files, r.pulls.Files(paths.Run))
	return files, r.debug().keepConfig(files)
}

// resolvConf returns the resolver configuration for programs in the sandbox and
// for pods with dnsPolicy Default. It contains the gateway, which asks the host's
// resolvers, and the host's search list.
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

// startRoles starts all roles at once. No role waits for another, since the API
// server's listeners exist already and queue early clients.
func (r *run) startRoles(ctx context.Context) error {
	if err := r.serveMetrics(); err != nil {
		return err
	}
	if r.plan.FastPath && r.box.TUN == nil {
		return exitcode.Wrap(exitcode.Unavailable, errors.New("make connections of pods by the host: /dev/net/tun cannot be used inside; --fast-path off does without"))
	}
	if r.plan.FastPath {
		var err error
		if r.switching, err = netrole.Hold(r.plan, r.members.Mesh(), r.members.Sockets().Switches, r.box.Socket); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	paths := r.plan.Paths
	program := func(name string) string { return filepath.Join(paths.Libexec, name) }
	var roles []*supervisor.Role
	switch {
	case r.plan.Replicated():
		roles = append(roles, r.replicaRoles(program("berth-kube"))...)
	case r.plan.Control():
		control := &supervisor.Role{
			Name: "control", Path: program("berth-kube"),
			Args: []string{"control", "--plan", paths.Plan()}, NotifyFlag: "--notify-fd",
			Passed: []supervisor.Passed{{Flag: "--listener-fd", File: r.box.Listener}, {Flag: "--listener-fd", File: r.apiListener}},
		}
		if r.saver != nil {
			control.Passed = append(control.Passed, supervisor.Passed{Flag: "--state-fd", File: r.saver.socket})
		}
		roles = append(roles, supervisor.InSandbox(r.box, control))
	}
	containerd := &supervisor.Role{
		Name: "containerd", Path: program("containerd"),
		Args: []string{"--config", paths.ContainerdConfig()}, NotifyFlag: "--notify-fd",
		Env: roleEnv(r.plan, r.pulls.RuntimeEnv(paths.Run, r.Getenv)...),
	}
	if r.plan.Snapshotter == cluster.EROFS {
		served, err := layers.New()
		if err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
		env := []string{}
		var refused []netip.Prefix
		if r.plan.LazyPull {
			env = r.pulls.OutsideEnv(r.Getenv)
			if refused, err = netrole.RefusedOutside(r.Spec, r.plan); err != nil {
				return err
			}
		}
		roles = append(roles, served.Role(r.supervisor, paths.Libexec, env, refused))
		containerd.Passed = []supervisor.Passed{{Flag: "--layers-fd", File: served.Containerd}}
	}
	roles = append(roles,
		r.logRole(),
		supervisor.InSandbox(r.box, containerd),
		supervisor.InSandbox(r.box, &supervisor.Role{
			Name: "dns", Path: program("coredns"),
			Args: []string{"-conf", paths.Corefile()},
			Env:  roleEnv(r.plan, "BERTH_NOTIFY_FD="+strconv.Itoa(supervisor.NotifyFD), "BERTH_DNS_ADDRESS="+netip.AddrPortFrom(r.plan.Addresses.DNS, 53).String()),
		}),
	)
	if r.box.TUN != nil {
		net, err := netrole.Parent{
			Spec: r.Spec, Plan: r.plan, Box: r.box,
			Mesh: r.members.Mesh(), Sockets: r.members.Sockets(),
			Published: r.published, Held: r.switching,
		}.Role(r.supervisor)
		if err != nil {
			return err
		}
		roles = append(roles, net)
	} else if len(r.Spec.Publish) > 0 {
		return exitcode.Wrap(exitcode.Unavailable, errors.New("publish ports: this host has no usable /dev/net/tun; an administrator can run: modprobe tun && chmod 0666 /dev/net/tun"))
	} else {
		r.Log.Warn("pods cannot reach the outside: this host has no usable /dev/net/tun; an administrator can run: modprobe tun && chmod 0666 /dev/net/tun")
	}
	if !r.nodeWaits() {
		roles = append(roles, r.nodeRole())
	}
	return r.addRoles(roles...)
}

func (r *run) addRoles(roles ...*supervisor.Role) error {
	for _, role := range roles {
		role.Log = r.log(role.Name)
		if role.Env == nil {
			role.Env = roleEnv(r.plan)
		}
		if err := r.supervisor.Add(role); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	return nil
}

func (r *run) nodeRole() *supervisor.Role {
	return supervisor.InSandbox(r.box, &supervisor.Role{
		Name: "node", Path: filepath.Join(r.plan.Paths.Libexec, "berth-kube"),
		Args: []string{"node", "--plan", r.plan.Paths.Plan()}, NotifyFlag: "--notify-fd",
		Passed: r.switching.ForNodeRole(),
	})
}

// nodeWaits reports whether the kubelet starts only after the import of the
// archives. The pods of a restored cluster exist from the beginning. The kubelet
// would pull the images that are not imported yet from a registry.
func (r *run) nodeWaits() bool { return r.Spec.State != "" && len(r.archives) > 0 }

// startLateNode starts the kubelet if it had to wait for the archives.
func (r *run) startLateNode(context.Context) error {
	if !r.nodeWaits() {
		return nil
	}
	return r.addRoles(r.nodeRole())
}
