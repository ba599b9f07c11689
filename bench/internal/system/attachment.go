package system

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// attachment runs tasks in pods of the network that flannel or Calico makes
// between the hosts by CNI. It measures only the path of packets, without
// Kubernetes. Pods are network namespaces of the user, two on each host, which
// root has attached for the time of the run (test/bench/flannel/host,
// test/bench/calico/host).
type attachment struct {
	unpacked
	network string // flannel or calico
	way     string // flannel's backend or Calico's mode
	client  attached
	server  attached
}

// attached is a pod: the PID of a process in its namespaces, and its IP address.
type attached struct{ pid, address string }

// enter returns the beginning of a command that starts a program in the pod. The user owns
// the pod's user namespace, so this needs no privileges.
func (a attached) enter() []string {
	return []string{"nsenter", "--target", a.pid, "--user", "--net", "--preserve-credentials", "--"}
}

// look returns the pods that root has set up on a host. Each way has a file that lists them.
func (a *attachment) look(ctx context.Context, hosts []string) (versions map[string]string, pods []attached, err error) {
	text, err := a.place.askOn(ctx, hosts, "cat", fmt.Sprintf("/run/berth-bench-%s/%s/pods", a.network, a.way))
	if err != nil {
		return nil, nil, fmt.Errorf("%[1]s is not set up on the hosts: 'make -C test/bench %[1]s', and root's test/bench/%[1]s/host on both: %[2]w", a.network, err)
	}
	return readAttached(a.network, text)
}

// readAttached parses a file that lists the pods of a network and the network's version. It
// returns an error unless there are two pods.
func readAttached(network, text string) (map[string]string, []attached, error) {
	versions := map[string]string{}
	var pods []attached
	for line := range strings.Lines(text) {
		switch words := strings.Fields(line); {
		case len(words) == 2 && words[0] == network:
			versions[network] = words[1]
		case len(words) == 3 && words[0] == "pod":
			_, wrong := strconv.Atoi(words[1])
			if _, err := netip.ParseAddr(words[2]); err != nil || wrong != nil {
				return nil, nil, fmt.Errorf("read the pods of %s: %q", network, line)
			}
			pods = append(pods, attached{words[1], words[2]})
		}
	}
	if len(pods) != 2 || versions[network] == "" {
		return nil, nil, fmt.Errorf("read the pods of %s: there are %d, and its version is %q", network, len(pods), versions[network])
	}
	return versions, pods, nil
}

func (a *attachment) Check(ctx context.Context) (map[string]string, error) {
	if err := a.place.found(ctx, map[string]string{"nsenter": "util-linux"}); err != nil {
		return nil, err
	}
	versions, pods, err := a.look(ctx, a.place.host(0))
	if err != nil {
		return nil, err
	}
	a.client = pods[0]
	_, pods, err = a.look(ctx, a.place.lastHost())
	if err != nil {
		return nil, err
	}
	a.server = pods[1] // differs from the client's even if both are on one host
	return versions, nil
}

func (a *attachment) Run(ctx context.Context, task Task) (Output, error) {
	switch {
	case task.Images != nil || task.Sequence != nil || task.Folder != NoFolder:
		return Output{}, &Unsupported{"it is only a network, without a cluster"}
	case task.Server == nil || task.Server.At != InPod:
		return Output{}, &Unsupported{"this network connects only its pods: measure with the parameter to=pod"}
	}
	stop, err := a.place.start(ctx, a.place.step(a.place.lastHost(), append(a.server.enter(), a.place.served(*task.Server)...)))
	if err != nil {
		return Output{}, err
	}
	defer stop()
	args := replace(task.Args, ServerHere, a.server.address)
	return noted(a.place.run(ctx, a.place.measuredThrough(a.place.host(0), a.place.Archive, a.client.enter(), args, task.Window), ""))
}
