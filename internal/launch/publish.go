package launch

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/netrole"
)

// publish opens the ports that the user publishes on the hosts.
func (r *run) publish(ctx context.Context) error {
	if r.localConfig.Index > 0 {
		return nil // the first node of the host opens them
	}
	for _, value := range r.Spec.Publish {
		wanted, err := cluster.ParsePublish(value)
		if err != nil {
			return exitcode.Wrap(exitcode.Usage, err)
		}
		opened, err := netrole.Publish(ctx, wanted)
		if err != nil {
			return exitcode.Wrap(exitcode.Unavailable, err)
		}
		r.published = append(r.published, opened)
		if !r.members.Leads() {
			continue // the head reports for all nodes
		}
		_, err = r.ownJob()
		r.Log.Warn(whoReaches(wanted, err == nil))
	}
	if err := r.namePublished(ctx); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	return r.publishForKSI(ctx)
}

// whoReaches describes who can connect to a port. own reports whether the job has
// its own network.
func whoReaches(p cluster.Publish, own bool) string {
	whose, where := "anyone who reaches a host of this cluster", "its port "+strconv.Itoa(int(p.Host))
	if p.Address.IsValid() {
		where = netip.AddrPortFrom(p.Address, p.Host).String()
	}
	switch loopback := p.Address.IsLoopback(); {
	case loopback && own:
		whose = "every process of this job"
	case loopback:
		whose = "anyone on a host of this cluster"
	case own:
		whose = "anyone whom this site lets into the network of this job"
	}
	return fmt.Sprintf("%s can connect to %s, which leads to port %d of the node", whose, where, p.Node)
}
