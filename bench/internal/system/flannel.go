package system

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/step"
)

// flannel runs tasks in pods of a network that flannel makes between the hosts: the path
// of packets alone, without a Kubernetes. Pods are network namespaces of the user's own,
// which root has attached for the time of the run (test/bench/flannel/host): two on each host.
type flannel struct {
	place   Place
	backend string
	client  attached
	server  attached
}

// attached is a pod: a process in its namespaces, and its address.
type attached struct{ pid, address string }

// flannelFolder has a file for each backend, which says what root has set up.
const flannelFolder = "/run/berth-bench-flannel/"

// enter is the command by which the user's programs come into a pod, whose user namespace
// is theirs.
func (a attached) enter() []string {
	return []string{"nsenter", "--target", a.pid, "--user", "--net", "--preserve-credentials", "--"}
}

// look reads what root has set up on a host.
func (f *flannel) look(ctx context.Context, hosts []string) (versions map[string]string, pods []attached, err error) {
	text, err := f.place.askOn(ctx, hosts, "cat", flannelFolder+f.backend+"/pods")
	if err != nil {
		return nil, nil, fmt.Errorf("flannel is not set up on the hosts: 'make -C test/bench flannel', and root's test/bench/flannel/host on both: %w", err)
	}
	return readFlannel(text)
}

// readFlannel reads such a file.
func readFlannel(text string) (map[string]string, []attached, error) {
	versions := map[string]string{}
	var pods []attached
	for line := range strings.Lines(text) {
		switch words := strings.Fields(line); {
		case len(words) == 2 && words[0] == "flannel":
			versions["flannel"] = words[1]
		case len(words) == 3 && words[0] == "pod":
			_, wrong := strconv.Atoi(words[1])
			if _, err := netip.ParseAddr(words[2]); err != nil || wrong != nil {
				return nil, nil, fmt.Errorf("read flannel's pods: %q", line)
			}
			pods = append(pods, attached{words[1], words[2]})
		}
	}
	if len(pods) != 2 || versions["flannel"] == "" {
		return nil, nil, fmt.Errorf("read flannel's pods: there are %d, and flannel %q", len(pods), versions["flannel"])
	}
	return versions, pods, nil
}

func (f *flannel) Check(ctx context.Context) (map[string]string, error) {
	if err := f.place.found(ctx, map[string]string{"nsenter": "util-linux"}); err != nil {
		return nil, err
	}
	versions, pods, err := f.look(ctx, f.place.host(0))
	if err != nil {
		return nil, err
	}
	f.client = pods[0]
	_, pods, err = f.look(ctx, f.place.lastHost())
	if err != nil {
		return nil, err
	}
	f.server = pods[1] // another one than the client's also where both are on one host
	return versions, nil
}

func (f *flannel) Prepare(ctx context.Context) error {
	_, err := f.place.onPair(ctx, step.UnpackArg, f.place.Archive)
	return err
}

func (f *flannel) Close(ctx context.Context) error {
	_, err := f.place.onPair(ctx, step.RemoveArg, f.place.Archive)
	return err
}

func (f *flannel) Run(ctx context.Context, task Task) (Output, error) {
	switch {
	case task.Images != nil || task.Beside != nil || task.Folder != NoFolder:
		return Output{}, &Unsupported{"it is a network alone, without a cluster"}
	case task.Server == nil || task.Server.At != InPod:
		return Output{}, &Unsupported{"it connects its pods: measure with the server in a pod"}
	}
	stop, err := f.place.Start(ctx, f.place.step(f.place.lastHost(), append(f.server.enter(), f.place.served(*task.Server)...)))
	if err != nil {
		return Output{}, err
	}
	defer stop()
	args := replace(task.Args, ServerHere, f.server.address)
	return noted(f.place.Run(ctx, f.place.measuredThrough(f.place.host(0), f.place.Archive, f.client.enter(), args, task.Window), ""))
}
