package launch

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strconv"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/layers"
	"berth.dev/berth/internal/launch/logrole"
	"berth.dev/berth/internal/launch/netrole"
	"berth.dev/berth/internal/launch/supervisor"
)

// logsRole is the name of the role that reads the logs of containers.
const logsRole = "logs"

// startRoles starts all roles at once. No role waits for another, since the API
// server's listeners exist already and queue early clients.
func (n *node) startRoles(ctx context.Context) error {
	var err error
	if n.metrics, err = servePage(n.dirs.scratch.Path, n.page); err != nil {
		return err
	}
	if n.plan.FastPath && n.box.TUN == nil {
		return exitcode.Wrap(exitcode.Unavailable, errors.New("make connections of pods by the host: /dev/net/tun cannot be used inside; --fast-path off does without"))
	}
	if n.plan.FastPath {
		if n.switching, err = netrole.Hold(n.plan, n.members.Places(), n.members.Sockets().Switches, n.box.Socket); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	paths := n.plan.Paths
	program := func(name string) string { return filepath.Join(paths.Libexec, name) }
	var roles []*supervisor.Role
	if n.plan.Replicated() {
		roles = replicaRoles(n.host.self, n.plan, n.box, n.apiListener)
	}
	if n.plan.Control() {
		roles = append(roles, supervisor.InSandbox(n.box, n.controlRole()))
	}
	budget := max(1, n.plan.ImageBudget)
	containerd := &supervisor.Role{
		Name: "containerd", Path: program("containerd"),
		Args: []string{"--config", paths.ContainerdConfig(), "--image-budget", strconv.Itoa(budget)}, NotifyFlag: "--notify-fd",
		Env: append(roleEnv(n.plan, n.pulls.RuntimeEnv(paths.Run, n.Getenv)...), "BERTH_UNWRITTEN="+paths.Unwritten()),
	}
	if n.plan.Snapshotter == cluster.EROFS {
		served, err := layers.New()
		if err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
		env := []string{}
		var refused []netip.Prefix
		if n.plan.LazyPull {
			env = n.pulls.OutsideEnv(n.Getenv)
			if refused, err = netrole.RefusedOutside(n.Spec, n.plan); err != nil {
				return err
			}
		}
		roles = append(roles, served.Role(n.supervisor, paths.Libexec, env, refused, budget))
		containerd.Passed = []supervisor.Passed{{Flag: "--layers-fd", File: served.Containerd}}
	}
	roles = append(roles,
		// Without this role, which keeps logs that the kubelet deletes, the API server serves
		// them, as for kubectl.
		supervisor.InSandbox(n.box, &supervisor.Role{
			Name: logsRole, Path: program(sandboxProgram), Optional: true,
			Args: []string{logrole.Arg, paths.PodLogs(), paths.Unwritten(), paths.LogSocket()},
			Env:  []string{logrole.SpoolEnv + "=" + n.Getenv(logrole.SpoolEnv)},
		}),
		supervisor.InSandbox(n.box, containerd),
		supervisor.InSandbox(n.box, &supervisor.Role{
			Name: "dns", Path: program("coredns"),
			Args: []string{"-conf", paths.Corefile()},
			Env:  roleEnv(n.plan, "BERTH_NOTIFY_FD="+strconv.Itoa(supervisor.NotifyFD), "BERTH_DNS_ADDRESS="+netip.AddrPortFrom(n.plan.Addresses.DNS, 53).String()),
		}),
	)
	net, err := n.netRole()
	if err != nil {
		return err
	}
	if net != nil {
		roles = append(roles, net)
	}
	if !n.nodeWaits() {
		roles = append(roles, n.kubelet())
	}
	return n.addRoles(roles...)
}

func (n *node) controlRole() *supervisor.Role {
	control := &supervisor.Role{
		Name: "control", Path: filepath.Join(n.plan.Paths.Libexec, "berth-kube"),
		Args: []string{"control", "--plan", n.plan.Paths.Plan()}, NotifyFlag: "--notify-fd",
		Passed: []supervisor.Passed{{Flag: "--listener-fd", File: n.box.Listener}},
	}
	if !n.plan.Replicated() { // otherwise the balancer serves apiListener
		control.Passed = append(control.Passed, supervisor.Passed{Flag: "--listener-fd", File: n.apiListener})
	}
	if n.saver != nil {
		control.Passed = append(control.Passed, supervisor.Passed{Flag: "--state-fd", File: n.saver.socket})
	}
	return control
}

// netRole returns the role that connects the node, or nil if the host has no TUN
// device.
func (n *node) netRole() (*supervisor.Role, error) {
	if n.box.TUN != nil {
		return netrole.Parent{
			Spec: n.Spec, Plan: n.plan, Box: n.box,
			Places: n.members.Places(), Sockets: n.members.Sockets(),
			Published: n.published, Held: n.switching,
		}.Role(n.supervisor)
	}
	if len(n.Spec.Publish) > 0 {
		return nil, exitcode.Wrap(exitcode.Unavailable, errors.New("publish ports: this host has no usable /dev/net/tun; an administrator can run: modprobe tun && chmod 0666 /dev/net/tun"))
	}
	n.Log.Warn("pods cannot reach the outside: this host has no usable /dev/net/tun; an administrator can run: modprobe tun && chmod 0666 /dev/net/tun")
	return nil, nil
}

func (n *node) addRoles(roles ...*supervisor.Role) error {
	for _, role := range roles {
		role.Log = n.dirs.log(role.Name)
		if role.Env == nil {
			role.Env = roleEnv(n.plan)
		}
		if err := n.supervisor.Add(role); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	return nil
}

// kubelet returns the node role, which contains the kubelet.
func (n *node) kubelet() *supervisor.Role {
	return supervisor.InSandbox(n.box, &supervisor.Role{
		Name: "node", Path: filepath.Join(n.plan.Paths.Libexec, "berth-kube"),
		Args: []string{"node", "--plan", n.plan.Paths.Plan()}, NotifyFlag: "--notify-fd",
		Passed: n.switching.ForNodeRole(),
	})
}

// nodeWaits reports whether the kubelet starts only after the import of the
// archives. The pods of a restored cluster exist from the beginning. Otherwise the kubelet
// would pull images from a registry before they are imported.
func (n *node) nodeWaits() bool { return n.Spec.State != "" && len(n.archives) > 0 }

// startLateNode starts the kubelet if it had to wait for the archives.
func (n *node) startLateNode(context.Context) error {
	if !n.nodeWaits() {
		return nil
	}
	return n.addRoles(n.kubelet())
}

// stopRoles ignores the ends of roles, and closes the socket with the node's page.
func (n *node) stopRoles() {
	n.supervisor.IgnoreExits()
	if n.metrics != nil {
		n.metrics.Close()
	}
}
