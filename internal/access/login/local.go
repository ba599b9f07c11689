package login

import (
	"context"
	"os"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

// local finds the cluster of a job, or of this machine, whose API server runs on
// this host. The files of such a cluster suffice to reach it.
func (p *Place) local(job string) (persistent.Cluster, bool) {
	c, ok := persistent.Find(rundir.MemoryPlaces(p.getenv), job)
	return c, ok && c.Head == ""
}

// stay returns a session with such a cluster, once the cluster is ready.
func (p *Place) stay(ctx context.Context, target Target, c persistent.Cluster) (*Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, openLimit, problem(codeUnavailable, "reach the %s: it is not ready within %s", describeLocal(target), openLimit))
	defer cancel()
	facts, err := c.AwaitReady(ctx)
	if err != nil {
		return nil, problem(codeUnavailable, "reach the %s: %v", describeLocal(target), err)
	}
	node, err := os.Hostname()
	if name := p.getenv("SLURMD_NODENAME"); name != "" || err != nil {
		node = name
	}
	s := &Session{
		Target: target, Kubeconfig: c.Kubeconfig(), Cache: facts.Cache, Bin: facts.Bin,
		Node: node, Cluster: c.Name(), Version: cluster.Version(), nodes: len(facts.Nodes), since: facts.Since,
		lost: make(chan struct{}),
	}
	go func() {
		<-c.Ended()
		s.why = problem(codeUnavailable, "the %s has ended", describeLocal(target))
		close(s.lost)
	}()
	return s, nil
}

func describeLocal(target Target) string {
	if target.Job == persistent.Local {
		return "cluster of this machine"
	}
	return "cluster of job " + target.String()
}

// queued returns the list entry of a cluster without a tunnel.
func (s *Session) queued() slurm.Queued {
	return slurm.Queued{
		ID: s.Target.Job, Name: s.Target.Job, JobName: "-", State: slurm.Running,
		Nodes: s.nodes, Elapsed: time.Since(s.since), Left: -1,
	}
}
