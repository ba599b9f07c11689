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

// Local is what stands for the job of a cluster outside of Slurm.
const Local = "local"

// poll is how often is looked whether a cluster is ready.
const poll = 30 * time.Millisecond

// Cluster is one that lives, seen from a host that it runs on.
type Cluster struct {
	// Path is its directory in memory on this host.
	Path string
	// Head is the name of the node with the API server; empty on that itself.
	Head string
}

// Facts are what a cluster says of itself once it is ready.
type Facts struct {
	// Job is Slurm's number, or Local.
	Job string
	// Since is when it was ready.
	Since time.Time
	// Nodes are their names in Kubernetes, the head's first.
	Nodes []string
	// Cache is a directory for what programs learn of the API server, Bin one
	// with kubectl and helm.
	Cache, Bin string
	// IDs are the user and group ids that pods can have, such as "0 to 65536".
	IDs string
	// End is when the job's time is over; zero where that is not known.
	End time.Time
}

// Kubeconfig is by which programs on the head reach the cluster.
func (c Cluster) Kubeconfig() string { return filepath.Join(c.Path, rundir.KubeconfigFile) }

// Name is that of the run.
func (c Cluster) Name() string {
	return strings.TrimSuffix(filepath.Base(c.Path), rundir.PrivateSuffix)
}

// Find returns the cluster of a job, or of none (Local), that stands on this
// host; ok is false where there is none. Should there be several, it is one
// whose API server is here.
func Find(places []string, job string) (found Cluster, ok bool) {
	for _, c := range all(places, job) {
		if !ok || c.Head == "" {
			found, ok = c, true
		}
	}
	return found, ok
}

// Before returns the cluster of the same job that was begun on this host before
// the one with the given directory; ok is false where there is none. Two that
// begin at once agree on which is the first.
func Before(places []string, job, dir string) (found Cluster, ok bool) {
	for _, c := range all(places, job) {
		if len(c.Path) < len(dir) || len(c.Path) == len(dir) && c.Path < dir { // by the numbers in it
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
			if _, err := os.Stat(filepath.Join(path, rundir.StandingFile)); err != nil || !private || !strings.HasPrefix(name, prefix) {
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

// ErrEnded says that a cluster ended while it was waited for.
var ErrEnded = errors.New("the cluster has ended")

// AwaitReady returns what a cluster says of itself, on its head, once it can be
// used.
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
	content, err := os.ReadFile(filepath.Join(c.Path, rundir.StandingFile))
	if err != nil {
		return facts, err
	}
	return facts, json.Unmarshal(content, &facts) // empty until it is ready
}

// Ended is closed when no process of the cluster's supervisor is left.
func (c Cluster) Ended() <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = rundir.Await(c.Path) // a directory that cannot be opened is on its way out
	}()
	return ended
}

// Mark marks a run's directory as that of a cluster that stands, and is not
// ready.
func Mark(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, rundir.StandingFile), nil, 0o600); err != nil {
		return fmt.Errorf("mark the cluster as one that stays: %w", err)
	}
	return nil
}

// MarkReady says that the cluster can be used.
func MarkReady(dir string, facts Facts) error {
	content, err := json.Marshal(facts)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, rundir.StandingFile)
	if err = os.WriteFile(path+".new", content, 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fmt.Errorf("mark the cluster as ready: %w", err)
	}
	return nil
}
