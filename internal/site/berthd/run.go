package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/podcni"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// Run runs berthd until the context ends. It leaves all networks as they are: the
// next daemon takes them over.
func Run(ctx context.Context, config siteconf.Config, node string, log *slog.Logger) error {
	if err := os.MkdirAll(config.Run, 0o755); err != nil {
		return fmt.Errorf("make directory of berthd: %w", err)
	}
	unlock, err := lock(config.Run)
	if err != nil {
		return err
	}
	defer unlock()
	host, err := hostAddress(config.Hosts)
	if err != nil {
		return err
	}
	daemons, err := numbers(config.Policy.Daemons)
	if err != nil {
		return err
	}
	store, err := OpenStore(config)
	if err != nil {
		return err
	}
	defer store.Close()
	kernel := &vxlan.Kernel{NFT: config.NFT, Dir: config.Run, Log: log}
	d := newDaemon(config, node, host, store, kernel, log)
	d.daemons = daemons
	if config.ByRoutes() {
		d.routed = vxlan.NewRouted(node, store.subnets)
	}
	if err := d.gateways.adopt(kernel, config.Hosts); err != nil {
		return err
	}
	if config.ByCNI() {
		if d.cni, err = podcni.Open(ctx, config.CNI.List, config.CNI.Plugins, config.CNI.State, d.touch); err != nil {
			return err
		}
		defer d.cni.Close()
	}
	everywhere := slices.Contains(config.RoutesOn, node) || d.gateways.here()
	if everywhere {
		if d.led, err = kernel.Led(config.Pods); err != nil {
			return err
		}
	}
	if err := d.load(); err != nil {
		return err
	}
	if err := d.apply(ctx, true); err != nil {
		return err
	}
	if err := d.firstSettled(ctx); err != nil {
		return err
	}
	if everywhere {
		d.followAll(ctx)
	}
	for _, local := range d.local {
		d.follow(local.Owner())
		d.unfollow(local.Owner())
	}
	listener, err := listen(config.Run)
	if err != nil {
		return err
	}
	if err := tellManager(); err != nil {
		log.Warn("tell the service manager that berthd is ready", "error", err)
	}
	log.Info("berthd is ready", "node", node, "address", host, "pods", len(d.local))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.server.serve(ctx, listener) })
	group.Go(func() error { return d.reconcile(ctx) })
	group.Go(func() error { return d.register(ctx) })
	group.Go(func() error { return d.collect(ctx) })
	group.Go(func() error { return d.runs.follow(ctx) })
	if config.Metrics != "" {
		group.Go(func() error { return d.metrics.serve(ctx, config.Metrics) })
	}
	if len(config.Gateways.On) > 0 {
		group.Go(func() error { return d.gateways.follow(ctx) })
		group.Go(func() error { return d.gateways.watchReach(ctx) })
	}
	if d.gateways.here() {
		group.Go(func() error { return d.gateways.announce(ctx, d.apply) })
	}
	if slices.Contains(config.LoginOn, node) {
		group.Go(func() error { return store.keepLease(ctx, log, d.relist) })
		group.Go(func() error { return d.sessions.removeEnded(ctx, d.removeSessions) })
	}
	defer d.background.Wait()
	return group.Wait()
}

// tellManager tells systemd that berthd is ready, if systemd waits for that
// (sd_notify(3)). systemd then starts slurmd.
func tellManager() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// Programs that berthd starts must not inherit it. A leading @ means an abstract
	// address, in Go too.
	if err := os.Unsetenv("NOTIFY_SOCKET"); err != nil {
		return err
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("READY=1"))
	return errors.Join(err, conn.Close())
}

// lock prevents a second daemon, also of another version.
func lock(run string) (func(), error) {
	file, err := os.OpenFile(filepath.Join(run, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", run, err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		return nil, fmt.Errorf("lock %s: %w: another berthd runs on this node", run, err)
	}
	return func() { file.Close() }, nil
}

// hostAddress returns the only address of this host in the network of the hosts.
func hostAddress(hosts netip.Prefix) (netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses of this host: %w", err)
	}
	var found []netip.Addr
	for _, a := range all {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && hosts.Contains(prefix.Addr()) {
			found = append(found, prefix.Addr())
		}
	}
	if len(found) != 1 {
		return netip.Addr{}, fmt.Errorf("this host has %d addresses in hosts %s, want one: correct 'hosts' in the configuration", len(found), hosts)
	}
	return found[0], nil
}

func numbers(names []string) ([]uint32, error) {
	var all []uint32
	var problems []error
	for _, name := range names {
		u, err := user.Lookup(name)
		if err != nil {
			problems = append(problems, fmt.Errorf("look up policy.daemons: %w", err))
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			problems = append(problems, fmt.Errorf("read number of user %s: %w", name, err))
			continue
		}
		all = append(all, uint32(uid))
	}
	return all, errors.Join(problems...)
}
