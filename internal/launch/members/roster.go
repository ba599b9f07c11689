package members

import (
	"fmt"
	"os"
	"slices"
	"strconv"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
)

// roster lists the nodes of a run, with the name of this one. It is complete before
// any node connects to another, and does not change when the head does.
type roster struct {
	config rendezvous.Config
	// elastic is set if nodes of other jobs may join the run.
	elastic bool
}

// Size returns the number of nodes of the run.
func (r *roster) Size() int { return max(1, len(r.config.Nodes)) }

// Several reports whether the run has, or may get, more than one node.
func (r *roster) Several() bool { return r.elastic || r.Size() > 1 }

// Name returns the name of this node in the rendezvous. First returns the name of
// the first head.
func (r *roster) Name() string  { return r.config.Node }
func (r *roster) First() string { return r.config.Nodes[0] }

// Step returns the identity of the run's job step.
func (r *roster) Step() rendezvous.Step { return r.config.Step }

// Ports returns the range of ports that the nodes use on their hosts.
func (r *roster) Ports() rendezvous.PortRange { return r.config.Ports }

// Controls reports whether this node runs a control plane.
func (r *roster) Controls(spec cluster.Spec) bool {
	return r.Leads() || spec.HighlyAvailable && slices.Index(r.config.Nodes, r.config.Node) < cluster.ControlNodes
}

// Leads reports whether this node is the first head, or the only node.
func (r *roster) Leads() bool { return !r.Several() || r.config.Node == r.config.Nodes[0] }

// hostsOf returns the machines of a run, and the name of this one.
func hostsOf(job slurm.Job) (hosts []string, own string, err error) {
	if job.Place == slurm.PlaceTask {
		return job.Nodes, job.NodeName, nil
	}
	if own = job.NodeName; own == "" {
		if own, err = os.Hostname(); err != nil {
			return nil, "", fmt.Errorf("find the host's name: %w", err)
		}
	}
	return []string{own}, own, nil
}

// stepOf returns the identity of the job step for the rendezvous. Outside a step it is made
// from the id of this process.
func stepOf(job slurm.Job, getenv func(string) string) rendezvous.Step {
	if job.Place != slurm.PlaceTask {
		return rendezvous.Step{Job: fmt.Sprintf("local-%d", os.Getpid())}
	}
	attempt, _ := strconv.Atoi(getenv("SLURM_RESTART_COUNT"))
	return rendezvous.Step{Cluster: job.Cluster, Job: job.ID, Step: job.StepID, Attempt: attempt}
}
