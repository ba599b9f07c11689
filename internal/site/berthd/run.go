package berthd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/berthd/gateway"
	"berth.dev/berth/internal/site/berthd/limits"
	"berth.dev/berth/internal/site/berthd/nameserver"
	"berth.dev/berth/internal/site/berthd/pidns"
	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/podcni"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// run runs berthd until the context ends. It leaves all networks as they are: the
// next daemon takes them over.
func run(ctx context.Context, config siteconf.Config, node string, log *slog.Logger) error {
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
	daemons, err := numbers(ctx, config.Policy.Daemons)
	if err != nil {
		return err
	}
	shared, err := store.Open(config)
	if err != nil {
		return err
	}
	defer shared.Close()
	kernel := &vxlan.Kernel{NFT: config.NFT, Dir: config.Run, Log: log}
	d := newDaemon(config, node, host, shared, kernel, log)
	d.network.daemons = daemons
	d.refusals.counts = kernel.Refused
	if err := d.gateways.Adopt(kernel, config.Hosts); err != nil {
		return err
	}
	if config.ByCNI() {
		if d.network.plugins.cni, err = podcni.Open(ctx, config.CNI.List, config.CNI.Plugins, config.CNI.State, d.touch); err != nil {
			return err
		}
		defer d.network.plugins.cni.Close()
	}
	everywhere := slices.Contains(config.RoutesOn, node) || d.gateways.Here()
	if everywhere {
		if d.network.led, err = kernel.Led(config.Pods); err != nil {
			return err
		}
	}
	for _, dir := range []string{"pods", "net", "pid", "resolv", "sessions", "declined", servedDir} {
		if err := os.MkdirAll(filepath.Join(config.Run, dir), 0o700); err != nil {
			return fmt.Errorf("make directory of berthd: %w", err)
		}
	}
	if err := d.pods.load(ctx); err != nil {
		return err
	}
	if err := d.network.apply(ctx, true); err != nil {
		return err
	}
	if err := d.network.firstSettled(ctx); err != nil {
		return err
	}
	d.watch.start(ctx, everywhere)
	listener, err := listen(config.Run)
	if err != nil {
		return err
	}
	if err := notifySystemd(); err != nil {
		log.Warn("tell the service manager that berthd is ready", "error", err)
	}
	log.Info("berthd is ready", "node", node, "address", host, "pods", d.pods.len())
	return d.serve(ctx, listener)
}

// serve runs the parts until one of them fails or ctx ends.
func (d *daemon) serve(ctx context.Context, listener *net.UnixListener) error {
	config := d.config
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.server.serve(ctx, listener) })
	group.Go(func() error { return d.network.reconcile(ctx) })
	group.Go(func() error { return d.register(ctx) })
	group.Go(func() error { return d.collector.run(ctx) })
	group.Go(func() error { return d.runs.follow(ctx) })
	group.Go(func() error { return d.service.follow(ctx) })
	if config.Policy.Flows > 0 {
		group.Go(func() error { return d.refusals.run(ctx) })
	}
	if config.Metrics != "" {
		group.Go(func() error { return d.metrics.serve(ctx, config.Metrics) })
	}
	if len(config.Gateways.On) > 0 {
		group.Go(func() error { return d.gateways.Follow(ctx) })
		group.Go(func() error { return d.gateways.WatchReach(ctx) })
	}
	if d.gateways.Here() {
		group.Go(func() error { return d.gateways.Announce(ctx, d.network.apply) })
	}
	if slices.Contains(config.LoginOn, d.node) {
		group.Go(func() error { return d.store.KeepLease(ctx, d.log, d.relist) })
		group.Go(func() error { return d.sessions.removeEnded(ctx, d.removeSessions) })
	}
	defer d.background.Wait()
	return group.Wait()
}

// newDaemon returns a daemon whose parts know each other. It starts nothing.
func newDaemon(config siteconf.Config, node string, host netip.Addr, shared *store.Store, kernel kernel, log *slog.Logger) *daemon {
	within := func(name string) string { return filepath.Join(config.Run, name) }
	// With CNI plugins there is no gateway address of each node.
	resolver := config.Gateway()
	if config.ByCNI() {
		resolver = host
	}
	d := &daemon{config: config, node: node, host: host, store: shared, log: log, lastWords: defaultLastWords}
	d.audit = &audit{path: config.Audit, node: node, ipv6: config.IPv6, log: log, now: time.Now}
	d.optOuts = &optOuts{dir: within("declined"), allowed: config.OptOut, log: log}
	d.sessions = &sessions{dir: within("sessions"), log: log}
	d.server = &server{
		do: d.do, log: log, clients: limits.NewClients(), begun: limits.Starting{Most: limits.MaxBegun},
	}
	d.gateways = gateway.New(node, host, config.Gateways, shared, log, d.touch)
	d.jobNames = &jobNames{node: node, store: shared, jobs: map[string]*namedJob{}, changed: map[string]time.Time{}}
	d.runs = &namedRuns{dir: within(servedDir), node: node, names: d.jobNames, log: log}
	d.watch = &watch{store: shared, names: d.jobNames, node: d, log: log, networks: map[string]*follower{}, users: map[string]int{}}
	d.pods = &pods{
		node: node, config: config, names: d.jobNames, watch: d.watch, log: log, local: map[string]*localPod{},
		processes: pidns.New(within("pid"), config.Pod),
		resolvers: &resolvers{config: config, dir: within("resolv"), address: resolver},
	}
	d.metrics = &metrics{pods: d.pods.count, log: log}
	d.network = &network{
		config: config, host: host, kernel: kernel, gateways: d.gateways, pods: d.pods, watch: d.watch, metrics: d.metrics, log: log, dirty: make(chan struct{}, 1),
		applyNames: nameserver.New(config.DNS, within("names"), resolver, log, d.touch).Apply,
		plugins: &plugins{
			addresses: config.Pods, pods: d.pods, store: shared, metrics: d.metrics, log: log, relist: d.relist, finished: sync.NewCond(&d.pods.mu),
		},
	}
	d.refusals = &refusals{flows: config.Policy.Flows, pods: d.pods, metrics: d.metrics, audit: d.audit, log: log}
	d.collector = &collector{node: node, squeue: config.Squeue, period: config.Collect, store: shared, log: log}
	d.service = &service{node: node, run: config.Run, log: log}
	if config.ByRoutes() {
		d.network.routed = vxlan.NewRouted(node, config.Subnets())
	}
	return d
}

// notifySystemd reports to systemd that berthd is ready, if systemd waits for that
// (sd_notify(3)). systemd then starts slurmd.
func notifySystemd() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	// Programs that berthd starts must not inherit the variable. A leading @ means an abstract
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

// lock takes the lock that keeps a second daemon, also of another version, from running on this
// node. The returned function releases it.
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

// numbers returns the IDs of the users with these login names.
func numbers(ctx context.Context, names []string) ([]uint32, error) {
	var all []uint32
	var problems []error
	for _, name := range names {
		uid, err := userID(ctx, name)
		if err != nil {
			problems = append(problems, fmt.Errorf("look up policy.daemons: %w", err))
		}
		all = append(all, uid)
	}
	return all, errors.Join(problems...)
}

// userID returns the ID of the user with a login name. It asks getent, because without cgo the
// package os/user reads only /etc/passwd, and not what sssd or LDAP know.
func userID(ctx context.Context, name string) (uint32, error) {
	const unknown = 2 // getent(1)
	out, err := exec.CommandContext(ctx, "getent", "passwd", "--", name).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == unknown {
		return 0, fmt.Errorf("there is no user %s on this host: correct the name in the configuration", name)
	}
	if err != nil {
		return 0, fmt.Errorf("ask getent for user %s: %w", name, err)
	}
	fields := strings.Split(string(out), ":")
	if len(fields) < 3 {
		return 0, fmt.Errorf("ask getent for user %s: it printed %q", name, out)
	}
	uid, err := strconv.ParseUint(fields[2], 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read number of user %s: %w", name, err)
	}
	return uint32(uid), nil
}
