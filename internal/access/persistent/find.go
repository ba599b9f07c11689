package persistent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth.dev/berth/internal/base/rundir"
)

// Local stands for the job of a cluster that runs outside Slurm.
const Local = "local"

// poll is the interval between checks whether a cluster is ready.
const poll = 30 * time.Millisecond

// Cluster is a live cluster, as seen from one of its hosts.
type Cluster struct {
	// Path is its directory in memory on this host.
	Path string
	// Head is the name of the node with the API server. It is empty on that node.
	Head string
}

// Facts describes a cluster that is ready.
type Facts struct {
	// Job is Slurm's job number, or Local.
	Job string
	// Since is the time when the cluster became ready.
	Since time.Time
	// Nodes holds the names of the Kubernetes nodes, the head first.
	Nodes []string
	// Cache is a directory for what programs cache of the API server. Bin
	// contains kubectl and helm.
	Cache, Bin string
	// IDs describes the user and group ids of pods, such as "0 to 65536".
	IDs string
	// End is the end of the job's time, or zero if it is unknown.
	End time.Time
}

// Kubeconfig returns the path of the kubeconfig for programs on the head.
func (c Cluster) Kubeconfig() string { return filepath.Join(c.Path, rundir.KubeconfigFile) }

// Name returns the name of the run.
func (c Cluster) Name() string {
	return strings.TrimSuffix(filepath.Base(c.Path), rundir.PrivateSuffix)
}

// Find returns the persistent cluster of a job, or of Local, on this host. ok is
// false if there is none. Among several, it prefers one whose API server is on
// this host.
func Find(places []string, job string) (found Cluster, ok bool) {
	for _, c := range all(places, job) {
		if !ok || c.Head == "" {
			found, ok = c, true
		}
	}
	return found, ok
}

// Before returns a cluster of the same job that was started on this host before
// the one with the directory dir. ok is false if there is none. If two clusters
// start at the same time, both agree which one is first.
func Before(places []string, job, dir string) (found Cluster, ok bool) {
	for _, c := range all(places, job) {
		if len(c.Path) < len(dir) || len(c.Path) == len(dir) && c.Path < dir { // ordered by the numbers in the path
			found, ok = c, true
		}
	}
	return found, ok
}

func all(places []string, job string) []Cluster {
	var found []Cluster
	prefix := "job-" + job + "-"
	if job == Local {
		prefix = Local + "-"
	}
	for _, place := range places {
		for _, path := range rundir.Live(place) {
			name, private := strings.CutSuffix(filepath.Base(path), rundir.PrivateSuffix)
			if _, err := os.Stat(filepath.Join(path, rundir.PersistentFile)); err != nil || !private || !strings.HasPrefix(name, prefix) {
				continue
			}
			c := Cluster{Path: path}
			if head, err := os.ReadFile(filepath.Join(path, rundir.HeadFile)); err == nil {
				c.Head = strings.TrimSpace(string(head))
			}
			found = append(found, c)
		}
	}
	return found
}

// ErrEnded is the error if a cluster ends while a client waits for it.
var ErrEnded = errors.New("the cluster has ended")

// AwaitReady waits until the cluster is ready and returns its description. Call
// it on the head.
func (c Cluster) AwaitReady(ctx context.Context) (Facts, error) {
	ended := c.Ended()
	for {
		facts, err := c.facts()
		if err == nil {
			return facts, nil
		}
		select {
		case <-ended:
			return Facts{}, ErrEnded
		case <-ctx.Done():
			return Facts{}, fmt.Errorf("wait until the cluster is ready: %w", context.Cause(ctx))
		case <-time.After(poll):
		}
	}
}

func (c Cluster) facts() (facts Facts, err error) {
	content, err := os.ReadFile(filepath.Join(c.Path, rundir.PersistentFile))
	if err != nil {
		return facts, err
	}
	return facts, json.Unmarshal(content, &facts) // the file is empty until the cluster is ready
}

// Ended returns a channel that is closed when all processes of the cluster's
// supervisor have ended.
func (c Cluster) Ended() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = rundir.Await(c.Path) // a directory that cannot be opened is about to be removed
	}()
	return ended
}

// Mark marks a run's directory as belonging to a persistent cluster that is not
// ready yet.
func Mark(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, rundir.PersistentFile), nil, 0o600); err != nil {
		return fmt.Errorf("mark the cluster as one that stays: %w", err)
	}
	return nil
}

// MarkReady marks the cluster as ready and stores its description.
func MarkReady(dir string, facts Facts) error {
	content, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, rundir.PersistentFile)
	if err = os.WriteFile(path+".new", content, 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("mark the cluster as ready: %w", err)
	}
	return nil
}
