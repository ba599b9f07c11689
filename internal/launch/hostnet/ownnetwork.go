package hostnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/job/slurm"
)

// PodAddress is set in jobs that have their own network (docs/site-network.md).
// It contains this node's address in it.
const PodAddress = "BERTH_POD_ADDRESS"

// lookup resolves a name to addresses.
type lookup func(ctx context.Context, name string) ([]netip.Addr, error)

// ownNetwork finds the addresses of a job's nodes in the job's own network. The
// nodes' own names resolve to their addresses in the hosts' network, as Slurm
// needs.
type ownNetwork struct {
	names map[string]string
	look  lookup
}

// findOwnNetwork returns nil for a job in the hosts' network. local holds the
// addresses of this host, because the variable may come from another job.
func findOwnNetwork(job slurm.Job, getenv func(string) string, local []netip.Addr, look lookup) *ownNetwork {
	if job.Place != slurm.PlaceTask || !hasOwnNetwork(getenv, local) {
		return nil
	}
	return &ownNetwork{names: podNames(job, getenv), look: look}
}

// hasOwnNetwork reports whether this process is in the own network of a job: the variable
// names an address of this host.
func hasOwnNetwork(getenv func(string) string, local []netip.Addr) bool {
	own, err := netip.ParseAddr(getenv(PodAddress))
	return err == nil && slices.Contains(local, own)
}

// NetworkOf returns the number of the job whose own network this process is in, or an
// empty string in the hosts' network. Each component of a heterogeneous job has its own
// network.
func NetworkOf(job slurm.Job, getenv func(string) string, local []netip.Addr) string {
	if !hasOwnNetwork(getenv, local) {
		return ""
	}
	_, id, _ := strings.Cut(podNames(job, getenv)[job.NodeName], ".")
	return id
}

// podNames returns the names of an allocation's nodes in the job's network, which
// contain the index of the node. Each component of a heterogeneous job is a job
// with its own number.
func podNames(job slurm.Job, getenv func(string) string) map[string]string {
	names := map[string]string{}
	add := func(id string, nodes []string) {
		for i, node := range nodes {
			names[node] = fmt.Sprintf("pod%d.%s", i, id)
		}
	}
	if job.Components == 1 {
		add(job.ID, job.AllocatedNodes)
		return names
	}
	for i := range job.Components {
		if nodes, err := slurm.ExpandHosts(getenv(fmt.Sprintf("SLURM_JOB_NODELIST_HET_GROUP_%d", i))); err == nil {
			add(getenv(fmt.Sprintf("SLURM_JOB_ID_HET_GROUP_%d", i)), nodes)
		}
	}
	return names
}

func (n *ownNetwork) addresses(ctx context.Context, node string) ([]netip.Addr, error) {
	name := n.names[node]
	if name == "" {
		return nil, fmt.Errorf("find node %s in the network of this job: the job has no such node: variables SLURM_* of another job are mixed in, unset them before srun", node)
	}
	addresses, err := n.look(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("find node %s in the network of this job by the name %s: %w; names need 'dns' in the configuration of the site's network",
			node, name, err)
	}
	return addresses, nil
}
