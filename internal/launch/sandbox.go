package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/network/egress"
	"berth.dev/berth/internal/node/containerdconf"
	"berth.dev/berth/internal/node/dnsconf"
	"berth.dev/berth/internal/node/sandbox"
)

func (n *node) startSandbox(ctx context.Context) error {
	files, err := n.sandboxFiles()
	if err != nil {
		return err
	}
	queues := len(n.members.Sockets().Packets)
	binds := map[string]string{
		n.plan.Paths.Kubelet: filepath.Join(n.dirs.scratch.Path, "kubelet"),
		"/var/log":           filepath.Join(n.dirs.scratch.Path, "var-log"),
		// libcni remembers what it did in this fixed path.
		"/var/lib/cni": filepath.Join(n.dirs.scratch.Path, "cni"),
	}
	if n.Spec.KSI != nil {
		if binds[ksiApp], err = ksiFolder(*n.Spec.KSI); err != nil {
			return err
		}
	}
	socket, cgroup := "", ""
	if n.plan.FastPath {
		socket = n.plan.Paths.FastPath()
	}
	if n.cgroup != nil {
		cgroup = n.cgroup.Path
	}
	remove := []string{n.dirs.scratch.Path, n.dirs.private.Path}
	if folder := n.plan.ImageCache.InUse(); folder != "" { // while this node runs
		remove = append(remove, folder)
	}
	network := sandboxNetwork(n.plan, queues)
	if n.Spec.SlurmJobs && n.plan.Control() {
		network.ListenOutside = netip.AddrPortFrom(n.plan.Addresses.Node, 0)
	}
	n.noteCrash(lostCluster)
	n.box, err = sandbox.Start(ctx, sandbox.Config{
		Program:    filepath.Join(n.host.libexec, sandboxProgram),
		Hostname:   n.plan.Node.Name,
		IDMap:      n.host.sandboxIDs(),
		Run:        n.plan.Paths.Run,
		Keep:       []string{n.plan.Paths.Libexec, filepath.Dir(n.host.self), n.dirs.scratch.Path},
		Binds:      binds,
		Files:      files,
		ResolvConf: n.plan.Paths.ResolvConf(),
		Network:    network,
		Socket:     socket,
		Cgroup:     cgroup,
		Log:        n.dirs.log("sandbox"),
		Remove:     remove,
		Prune:      []string{filepath.Dir(n.dirs.scratch.Path), filepath.Dir(n.dirs.private.Path)},
	}, n.dirs.scratch.Lock)
	if err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	n.watching = make(chan struct{})
	go n.watchSandbox()
	go n.supervisor.Watch(ctx)
	if n.box.TUN != nil {
		if n.box.TUN, err = hostnet.Hold(n.box.TUN); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	for i, queue := range n.box.Overlay {
		if n.box.Overlay[i], err = hostnet.Hold(queue); err != nil {
			return exitcode.Wrap(exitcode.Internal, err)
		}
	}
	return nil
}

func (n *node) watchSandbox() {
	defer close(n.watching)
	err := n.box.Events(func(event sandbox.Event) {
		switch event.Kind {
		case sandbox.Exited:
			n.supervisor.Ended(event.Name, event.Status)
		case sandbox.Failed:
			n.supervisor.Failed(event.Name, event.Error)
		case sandbox.Stopped:
			n.supervisor.Resumed(event.Name)
		}
	})
	if err != nil {
		n.supervisor.GiveUp(exitcode.Wrap(exitcode.Internal, err))
	}
}

// sandboxFiles returns the files on the sandbox's tmpfs.
func (n *node) sandboxFiles() (map[string]sandbox.File, error) {
	files := n.identities.Nodes[0]
	encoded, err := json.MarshalIndent(n.plan, "", "  ")
	if err != nil {
		return nil, err
	}
	paths := n.plan.Paths
	readable := map[string][]byte{
		paths.Plan():                          encoded,
		paths.ContainerdConfig():              containerdconf.Containerd(n.plan),
		paths.CNIConfig() + "/berth.conflist": containerdconf.CNI(n.plan),
		paths.Corefile():                      dnsconf.Corefile(n.plan),
		paths.ResolvConf():                    resolvConf(n.plan.Addresses.Gateway),
	}
	maps.Copy(readable, containerdconf.RegistryHosts(n.plan))
	for name, content := range n.host.devices.Specs {
		readable[filepath.Join(paths.CDI(), name)] = content
	}
	for path, content := range readable {
		files[path] = sandbox.File{Mode: 0o644, Content: content}
	}
	restored, err := n.saver.takeRestored(n.returning != nil)
	if err != nil {
		return nil, err
	}
	if restored != nil {
		files[paths.Restore()] = *restored
	}
	maps.Copy(files, n.pulls.Files(paths.Run))
	return files, n.dirs.debug.keepConfig(files)
}

// resolvConf returns the resolver configuration for programs in the sandbox and
// for pods with dnsPolicy Default. It contains the gateway, which asks the host's
// resolvers, and the host's search list.
func resolvConf(gateway netip.Addr) []byte {
	text := fmt.Sprintf("nameserver %s\n", gateway)
	resolvers, err := egress.HostResolvers("/etc/resolv.conf")
	if err == nil && len(resolvers.Search) > 0 {
		text += "search " + strings.Join(resolvers.Search, " ") + "\n"
	}
	return []byte(text)
}

// closeSandbox keeps the logs of pods if the user wants them, ends all processes in the
// sandbox, and then the processes outside that serve it.
func (n *node) closeSandbox() error {
	if n.box == nil {
		return nil
	}
	err := errors.Join(n.dirs.debug.keepPodLogs(n.plan.Paths.PodLogs()), n.box.Close())
	n.noteCrash(lostCode)
	<-n.watching
	n.supervisor.EndOutside()
	n.members.Places().Close()
	n.switching.Close()
	return err
}
