package launch

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/job/slurm"
)

// podAddress is set in jobs to which the site gives a network of their own
// (docs/site-network.md): this node's address in it.
const podAddress = "BERTH_POD_ADDRESS"

// lookup asks a resolver for the addresses of a name.
type lookup func(ctx context.Context, name string) ([]netip.Addr, error)

// ownNetwork knows where the nodes of a job are in the network that it has for
// itself. Their own names lead to the hosts there, as Slurm needs it.
type ownNetwork struct {
	names map[string]string
	look  lookup
}

// findOwnNetwork returns nil in a job in the network of the hosts. local are the
// addresses here: the variable may have come along from another job.
func findOwnNetwork(job slurm.Job, getenv func(string) string, local []netip.Addr, look lookup) *ownNetwork {
	if job.Place != slurm.PlaceTask || !hasOwnNetwork(getenv, local) {
		return nil
	}
	return &ownNetwork{names: podNames(job, getenv), look: look}
}

func hasOwnNetwork(getenv func(string) string, local []netip.Addr) bool {
	own, err := netip.ParseAddr(getenv(podAddress))
	return err == nil && slices.Contains(local, own)
}

// networkOf is the number of the job whose network this is, "" in the network of the
// hosts. Each component of a heterogeneous job has one of its own.
func networkOf(job slurm.Job, getenv func(string) string, local []netip.Addr) string {
	if !hasOwnNetwork(getenv, local) {
		return ""
	}
	_, id, _ := strings.Cut(podNames(job, getenv)[job.NodeName], ".")
	return id
}

// podNames are those of the nodes of an allocation: a pod has the number of its node
// in it. Each component of a heterogeneous job is a job with a number of its own.
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
		return nil, fmt.Errorf("find node %s in the network of this job: it is none of its nodes: variables SLURM_* of another job are mixed in, unset them before srun", node)
	}
	addresses, err := n.look(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("find node %s in the network of this job by the name %s: %w; does the site's network have names ('dns' in its configuration)?",
			node, name, err)
	}
	return addresses, nil
}
