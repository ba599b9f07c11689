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

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/dnsconf"
	"berth.dev/berth/internal/egress"
	"berth.dev/berth/internal/probe"
	"berth.dev/berth/internal/rundir"
	"berth.dev/berth/internal/runtimeconf"
	"berth.dev/berth/internal/sandbox"
)

// The steps in this file make a node, on the head and on every other host. What
// only the head does is in run.go.

func (r *run) inspectHost(ctx context.Context) (err error) {
	if err := raiseLimits(); err != nil {
		return err
	}
	if shared := r.Spec.SharedVolumes; shared != "" && !writable(shared) {
		return fail(ExitNoInput, fmt.Errorf("use %s for shared volumes: it is no folder on this node that you may write to", shared))
	}
	roles := uint64(headMemory)
	if !r.team.leads() {
		roles = workerMemory
	}
	r.host, err = inspect(ctx, r.Spec, r.Getenv, r.allocation, roles)
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
	if r.box.TUN != nil {
		if r.box.TUN, err = hold(r.box.TUN); err != nil {
			return fail(ExitInternal, err)
		}
	}
	for i, queue := range r.box.Mesh {
		if r.box.Mesh[i], err = hold(queue); err != nil {
			return fail(ExitInternal, err)
		}
	}
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
