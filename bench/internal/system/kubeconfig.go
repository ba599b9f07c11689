package system

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
)

// kubeconfig runs tasks as pods of an existing cluster, such as one that KSI or HPK has
// started.
type kubeconfig struct {
	place            Place
	path, namespace  string
	image            string
	hostNetwork      bool
	number           atomic.Int64
	kubectlArguments []string
}

func newKubeconfig(place Place, options map[string]string) *kubeconfig {
	k := &kubeconfig{
		place: place, path: options["file"], namespace: options["namespace"], image: options["image"],
		hostNetwork: options["network"] == "host",
	}
	if k.image == "" {
		k.image = place.Image
	}
	k.kubectlArguments = []string{"--namespace", k.namespace}
	if k.path != "" {
		k.kubectlArguments = append(k.kubectlArguments, "--kubeconfig", k.path)
	}
	return k
}

// kubectl returns a command line of kubectl for the cluster. It runs on this machine, not on
// a host of the job, because the cluster is elsewhere.
func (k *kubeconfig) kubectl(args ...string) []string {
	return append(append([]string{k.place.Kubectl}, k.kubectlArguments...), args...)
}

func (k *kubeconfig) Check(ctx context.Context) (map[string]string, error) {
	if k.path == "" && os.Getenv("KUBECONFIG") == "" {
		return nil, fmt.Errorf("no cluster is given: set the option file, or KUBECONFIG")
	}
	here := Place{Timeout: k.place.Timeout}
	text, err := here.ask(ctx, k.kubectl("version", "-o", "json")...)
	if err != nil {
		return nil, fmt.Errorf("ask the cluster: %w", err)
	}
	var versions struct {
		ServerVersion struct {
			GitVersion string `json:"gitVersion"`
		} `json:"serverVersion"`
	}
	if err := json.Unmarshal([]byte(text[max(0, strings.Index(text, "{")):]), &versions); err != nil {
		return nil, fmt.Errorf("read the cluster's version: %w", err)
	}
	return map[string]string{"given cluster": versions.ServerVersion.GitVersion}, nil
}

func (k *kubeconfig) Prepare(context.Context) error { return nil }

func (k *kubeconfig) Close(context.Context) error { return nil }

// follow creates the objects on standard input, follows the pod's log from its first
// line, and exits with the pod's exit code. $1 is the pod, and kubectl follows.
const follow = `set -e; pod=$1; limit=$2; shift 2
"$@" create -f - >&2
until "$@" logs --follow --pod-running-timeout="$limit" "pod/$pod" 2>/dev/null; do
	[ "$("$@" get pod "$pod" -o jsonpath='{.status.phase}')" = Pending ] || break
	sleep 0.05
done
"$@" wait --for=jsonpath='{.status.containerStatuses[0].state.terminated}' --timeout=60s "pod/$pod" >&2
exit "$("$@" get pod "$pod" -o jsonpath='{.status.containerStatuses[0].state.terminated.exitCode}')"
`

func (k *kubeconfig) Run(ctx context.Context, task Task) (Output, error) {
	if task.Sequence != nil {
		return k.sequence(ctx, *task.Sequence)
	}
	if task.Folder == Scratch {
		return Output{}, &Unsupported{"only an administrator of the given cluster can give pods a folder of the host"}
	}
	name := fmt.Sprintf("berth-bench-%d-%d", os.Getpid(), k.number.Add(1))
	return k.place.withServer(ctx, task, func(args []string) (Output, error) {
		task.Args = args
		text, err := manifest([]Task{task}, objects{image: k.image, hostNetwork: k.hostNetwork, name: name})
		if err != nil {
			return Output{}, err
		}
		here := Place{Timeout: k.place.Timeout}
		limit := strconv.Itoa(int(k.place.Timeout.Seconds())) + "s"
		out, err := here.run(ctx, append([]string{"sh", "-c", follow, "follow", name, limit}, k.kubectl()...), text)
		_, wrong := Place{Timeout: k.place.Timeout}.run(context.WithoutCancel(ctx), k.kubectl("delete", "-f", "-", "--ignore-not-found"), text)
		if wrong != nil && err == nil {
			err = fmt.Errorf("remove the pod: %w", wrong)
		}
		out, wrong = takenApart(out, task, false)
		return out, errors.Join(err, wrong)
	})
}
