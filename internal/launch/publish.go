package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/network/egress"
)

// publishedPort is a port of this host that leads to a port of its node. This
// process only holds the listener, so that clients can wait while the net role
// restarts.
type publishedPort struct {
	cluster.Publish
	listener *os.File
}

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
		opened, err := openPort(ctx, wanted)
		if err != nil {
			return exitcode.Wrap(exitcode.Unavailable, err)
		}
		r.published = append(r.published, opened)
		if !r.members.leads() {
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

func openPort(ctx context.Context, wanted cluster.Publish) (publishedPort, error) {
	address := ":" + strconv.Itoa(int(wanted.Host))
	if wanted.Address.IsValid() {
		address = netip.AddrPortFrom(wanted.Address, wanted.Host).String()
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	remedy := ""
	switch {
	case errors.Is(err, syscall.EACCES):
		remedy = fmt.Sprintf("; the low ports of a host are not for users, so choose another: --publish %d:%d", 8000+wanted.Host, wanted.Node)
	case errors.Is(err, syscall.EADDRINUSE):
		remedy = "; another program has it, so choose another"
	}
	if err != nil {
		return publishedPort{}, fmt.Errorf("publish port %d of the nodes: %w%s", wanted.Node, err, remedy)
	}
	held, err := hostnet.Hold(listener.(*net.TCPListener))
	if err != nil {
		return publishedPort{}, fmt.Errorf("publish port %d of the nodes: %w", wanted.Node, err)
	}
	return publishedPort{wanted, held}, nil
}

// takePublished takes over the listeners in the net role.
func takePublished(told netConfig, in *inherited) ([]egress.Published, error) {
	var opened []egress.Published
	for _, to := range told.Published {
		listener, err := passedAs(in, net.FileListener)
		if err != nil {
			return nil, fmt.Errorf("use a published port (to %v): %w", to, err)
		}
		opened = append(opened, egress.Published{Listener: listener.(*net.TCPListener), To: to})
	}
	return opened, nil
}
