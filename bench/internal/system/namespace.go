package system

import (
	"context"
	"fmt"
	"strings"
)

// namespace runs tasks in a network namespace that a user-mode program connects, without
// a container. It measures the cost of such a network and nothing else.
type namespace struct {
	unpacked
	program string
	// connect is the program with its options, before the task's command.
	connect  []string
	packages map[string]string
	// wanted is a word that the program's help must contain. If it does not, Check returns
	// unknown as the error.
	wanted, unknown string
}

// rootlesskit returns a namespace with a network of RootlessKit, which rootless Docker and
// containerd use.
func rootlesskit(place Place, network string) *namespace {
	n := &namespace{
		unpacked: unpacked{place}, program: "rootlesskit", packages: map[string]string{"rootlesskit": "rootlesskit", "newuidmap": "uidmap"},
		wanted: network, unknown: "rootlesskit does not know " + network + ": 2.0 or newer is needed",
	}
	n.connect = []string{"rootlesskit", "--net=" + network, "--mtu=65520", "--disable-host-loopback"}
	switch network {
	case "slirp4netns":
		n.packages["slirp4netns"] = "slirp4netns"
		n.connect = append(n.connect, "--copy-up=/etc", "--slirp4netns-sandbox=false", "--slirp4netns-seccomp=false")
	case "pasta":
		n.packages["pasta"] = "passt"
		n.connect = append(n.connect, "--copy-up=/etc")
	}
	return n
}

// pasta returns a namespace that pasta connects, the namespace mode of passt.
func pasta(place Place) *namespace {
	return &namespace{
		unpacked: unpacked{place}, program: "pasta", packages: map[string]string{"pasta": "passt"},
		connect: []string{"pasta", "--config-net", "--quiet", "-t", "none", "-u", "none", "-T", "none", "-U", "none", "--"},
	}
}

func (n *namespace) Check(ctx context.Context) (map[string]string, error) {
	if err := n.place.found(ctx, n.packages); err != nil {
		return nil, err
	}
	if n.wanted != "" {
		help, err := n.place.ask(ctx, n.program, "--help")
		if err != nil {
			return nil, err
		}
		if !strings.Contains(help, n.wanted) {
			return nil, fmt.Errorf("%s", n.unknown)
		}
	}
	version, err := n.place.ask(ctx, n.program, "--version")
	if err != nil {
		return nil, err
	}
	version, _, _ = strings.Cut(version, "\n")
	return map[string]string{n.program: strings.TrimPrefix(version, n.program+" ")}, nil
}

func (n *namespace) Run(ctx context.Context, task Task) (Output, error) {
	if task.Folder != NoFolder && task.Folder != Scratch {
		return Output{}, &Unsupported{"it has a separate network, and the folders of the host"}
	}
	if task.Server != nil && task.Server.At != OnHost {
		return Output{}, &Unsupported{"it has no pods"}
	}
	if task.Server != nil && !n.place.inSlurm() && n.program == "pasta" {
		return Output{}, &Unsupported{"pasta gives the namespace this machine's own address, so that its servers are out of reach: use two hosts"}
	}
	return n.place.withServer(ctx, task, func(args []string) (Output, error) {
		return n.place.withFolder(ctx, task.Folder == Scratch, func(folder string) (Output, error) {
			argv := n.place.measuredThrough(n.place.host(0), n.place.Archive, n.connect, replace(args, FolderHere, folder), task.Window)
			return noted(n.place.run(ctx, argv, ""))
		})
	})
}
