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
func (n *node) publish(ctx context.Context) error {
	if n.localConfig.Index > 0 {
		return nil // the first node of the host opens them
	}
	leads := n.members.Leads() // the head reports for all nodes
	for _, value := range n.Spec.Publish {
		wanted, err := cluster.ParsePublish(value)
		if err != nil {
			return exitcode.Wrap(exitcode.Usage, err)
		}
		opened, err := netrole.Publish(ctx, wanted)
		if err != nil {
			return exitcode.Wrap(exitcode.Unavailable, err)
		}
		n.published = append(n.published, opened)
		if leads {
			_, err = ownJob(n.allocation, n.Getenv)
			n.Log.Warn(whoReaches(wanted, err == nil))
		}
	}
	var lines []string
	var err error
	if n.named, lines, err = namePublished(ctx, n.Spec, n.allocation, n.Getenv); err != nil {
		return exitcode.Wrap(exitcode.Unavailable, err)
	}
	if !leads {
		return nil
	}
	for _, line := range lines {
		n.Log.Info(line)
	}
	if n.Spec.KSI == nil {
		return nil
	}
	opened, err := publishForKSI(ctx, n.Getenv)
	if err != nil {
		return err
	}
	n.published, n.ksiPort = append(n.published, opened), opened.Host
	n.Log.Warn(fmt.Sprintf("anyone who reaches %s can connect to its port %d (%s), which leads to the NodePort of that number", n.host.name, opened.Host, ksiPortVariable))
	return nil
}

// closePorts closes the published ports, and releases their names.
func (n *node) closePorts() {
	for _, port := range n.published {
		port.Listener.Close()
	}
	if n.named != nil {
		n.named.Close()
	}
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
