package netrole

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/network/fastpath"
	"berth.dev/berth/internal/network/servicemap"
)

// serviceMapTimeout limits how long connections of pods wait for the service map
// when a Switch starts. Without a map it would break connections that its
// predecessor accepted.
const serviceMapTimeout = 2 * time.Second

// podSwitch is the part of the net role that handles connections of pods.
type podSwitch struct {
	*fastpath.Switch
	services *servicemap.Map
	conn     *servicemap.Conn
	log      *slog.Logger
	known    chan struct{} // closed when there is a service map
}

// openSwitch creates the Switch with the files that the supervisor holds for it. It
// returns nil if there is no Switch. reaches reports whether pods may reach an address outside the cluster.
func openSwitch(given config, fds linux.PassedFDs, reaches func(netip.Addr) bool, log *slog.Logger) (*podSwitch, error) {
	if given.Switch == nil {
		return nil, nil
	}
	s := &podSwitch{services: servicemap.New(given.Switch.Pods), log: log, known: make(chan struct{})}
	c := fastpath.Default()
	c.Nodes, c.Self, c.Key = given.Switch.Nodes, given.Switch.Self, given.Switch.Key
	c.ServiceMap, c.Policy, c.Log = routes{s.services, reaches}, s.services, log
	for fds.Has(fdListener) {
		listener, err := linux.TakeAs(fds, fdListener, net.FileListener)
		if err != nil {
			return nil, fmt.Errorf("use a socket for connections of pods: %w", err)
		}
		c.Listeners = append(c.Listeners, listener.(*net.TCPListener))
	}
	containers, err := linux.TakeAs(fds, fdContainers, net.FileListener)
	if err != nil {
		return nil, fmt.Errorf("use the socket for containers: %w", err)
	}
	c.Containers = containers.(*net.UnixListener)
	if c.Inside, err = linux.TakeAs(fds, fdInside, linux.PacketConn); err != nil {
		return nil, err
	}
	if c.State, err = fds.Take(fdState); err != nil {
		return nil, err
	}
	if c.Lifeline, err = fds.Take(fdLifeline); err != nil {
		return nil, err
	}
	line, err := fds.Take(fdServices)
	if err != nil {
		return nil, err
	}
	if s.conn, err = servicemap.NewConn(line); err != nil {
		return nil, err
	}
	s.Switch, err = fastpath.New(c)
	if err != nil {
		return nil, fmt.Errorf("%w; --fast-path off does without", err)
	}
	return s, nil
}

// routes resolves the destinations of a Switch with the service map.
type routes struct {
	*servicemap.Map
	reaches func(netip.Addr) bool
}

// Resolve implements fastpath.ServiceMap.
func (r routes) Resolve(to netip.AddrPort) (fastpath.Route, bool) {
	service, ok := r.Map.Resolve(to)
	return fastpath.Route{Targets: service.Endpoints, Sticky: service.Sticky}, ok
}

// Outside implements fastpath.ServiceMap.
func (r routes) Outside(to netip.AddrPort) bool {
	return r.reaches(to.Addr()) && !r.Claims(to.Addr())
}

// run handles connections of pods until ctx ends.
func (s *podSwitch) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	context.AfterFunc(ctx, func() { s.conn.Close() })
	group.Go(func() error { return s.receive(ctx) })
	group.Go(func() error {
		late := time.NewTimer(serviceMapTimeout)
		defer late.Stop()
		select {
		case <-s.known:
		case <-late.C:
		case <-ctx.Done():
		}
		return errors.Join(s.Run(ctx), s.Close())
	})
	return group.Wait()
}

// receive applies each State that the node role sends.
func (s *podSwitch) receive(ctx context.Context) error {
	if err := s.conn.Request(s.Lost()); err != nil {
		return err
	}
	for first := true; ; first = false {
		state, err := s.conn.Receive()
		if ctx.Err() != nil || errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.services.Set(state)
		if first {
			close(s.known)
		}
		n, err := s.Cut()
		if err != nil {
			s.log.Warn("connections that network policies forbid may go on", "err", err)
		} else if n > 0 {
			s.log.Info("ended connections that network policies forbid now", "connections", n)
		}
	}
}
