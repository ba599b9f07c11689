package jobend

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/access/tunnel"
	"berth.dev/berth/internal/base/pki"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

const (
	// startLimit limits how long a run that has just begun may take to write a
	// kubeconfig: its nodes find each other first.
	startLimit = 10 * time.Second
	startPoll  = 50 * time.Millisecond
)

// run is a run that is alive on this node.
type run struct {
	// name is the name of its directory, "job-JOB-STEP-PROCESS".
	name, path string
	step       string
}

// runs returns a job's runs on this node, of one step or of all steps.
func runs(places []string, job, step string) []run {
	var found []run
	for _, place := range places {
		for _, path := range rundir.Live(place) {
			name, private := strings.CutSuffix(filepath.Base(path), rundir.PrivateSuffix)
			fields := strings.SplitN(name, "-", 4)
			if !private || len(fields) != 4 || fields[0] != "job" || fields[1] != job {
				continue
			}
			r := run{name: name, path: path, step: stepName(fields[2])}
			if step == "" || step == r.step {
				found = append(found, r)
			}
		}
	}
	return found
}

// batchStep is Slurm's name of a batch script's step.
const batchStep = "batch"

// stepName returns the name that users know a run's step by. A batch script's
// step has no number, or a reserved one.
func stepName(number string) string {
	if n, err := strconv.ParseUint(number, 10, 32); err != nil || n >= slurm.FirstSpecialStep {
		return batchStep
	}
	return number
}

// find returns the one cluster of a job whose API server is on this node. If there is none,
// or several, the error is a *tunnel.Refusal.
func find(ctx context.Context, places []string, node string, request tunnel.Request) (*tunnel.Cluster, error) {
	var heads []run
	for deadline := time.Now().Add(startLimit); ; {
		var elsewhere string
		starting := false
		heads = nil
		for _, r := range runs(places, request.Job, request.Step) {
			head, err := os.ReadFile(filepath.Join(r.path, rundir.HeadFile))
			_, missing := os.Stat(filepath.Join(r.path, rundir.KubeconfigFile))
			switch {
			case missing == nil:
				heads = append(heads, r)
			case err == nil:
				elsewhere = strings.TrimSpace(string(head))
			default:
				starting = true
			}
		}
		if elsewhere != "" && elsewhere != node && len(heads) == 0 {
			return nil, &tunnel.Refusal{Reason: tunnel.Elsewhere, Head: elsewhere, Text: "the cluster's API server is on " + elsewhere}
		}
		if len(heads) > 0 || !starting || time.Now().After(deadline) {
			break
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(startPoll):
		}
	}
	switch len(heads) {
	case 0:
		return nil, &tunnel.Refusal{Reason: tunnel.None, Text: fmt.Sprintf("no cluster of job %s on node %s", request.Job, node)}
	case 1:
		return open(heads[0], node)
	}
	var steps []string
	for _, head := range heads {
		steps = append(steps, head.step)
	}
	return nil, &tunnel.Refusal{
		Reason: tunnel.Several, Steps: steps,
		Text: fmt.Sprintf("job %s has %d clusters on node %s, in its steps %s", request.Job, len(heads), node, strings.Join(steps, ", ")),
	}
}

func open(r run, node string) (*tunnel.Cluster, error) {
	content, err := os.ReadFile(filepath.Join(r.path, rundir.KubeconfigFile))
	if err != nil {
		return nil, gone(r, err)
	}
	client, err := pki.ReadKubeconfig(content)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", r.name, err)
	}
	server, err := url.Parse(client.Server)
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", r.name, err)
	}
	// The key is a file in the memory of the run's process.
	key, err := os.ReadFile(client.KeyFile)
	if err != nil {
		return nil, gone(r, err)
	}
	// Most clusters have only one node that reaches them.
	hosts, _ := os.ReadFile(filepath.Join(r.path, rundir.ControlNodesFile))
	others := slices.DeleteFunc(strings.Fields(string(hosts)), func(other string) bool { return other == node })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = rundir.Await(r.path) // a directory that cannot be opened is about to be removed
	}()
	return &tunnel.Cluster{
		Name:        r.name,
		Others:      others,
		Credentials: tunnel.Credentials{Authority: client.Authority, Cert: client.Cert, Key: key},
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server.Host)
		},
		Ended: ended,
	}, nil
}

// gone returns the error for a run that ended during the inspection.
func gone(r run, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &tunnel.Refusal{Reason: tunnel.None, Text: "the cluster has just ended"}
	}
	return fmt.Errorf("read the credentials of %s: %w", r.name, err)
}
