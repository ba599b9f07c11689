package netrole

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
	"berth.dev/berth/internal/launch/hostnet"
)

// Published is a port of this host that leads to a port of its node. This
// process only holds the listener, so that clients can wait while the net role
// restarts.
type Published struct {
	cluster.Publish
	Listener *os.File
}

// Publish opens a port of this host. The error contains a remedy if the port is taken or
// reserved for root.
func Publish(ctx context.Context, wanted cluster.Publish) (Published, error) {
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
		return Published{}, fmt.Errorf("publish port %d of the nodes: %w%s", wanted.Node, err, remedy)
	}
	held, err := hostnet.Hold(listener.(*net.TCPListener))
	if err != nil {
		return Published{}, fmt.Errorf("publish port %d of the nodes: %w", wanted.Node, err)
	}
	return Published{wanted, held}, nil
}
