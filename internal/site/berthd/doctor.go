package berthd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// nodeChecks returns the checks of a node, whether a daemon runs there or not.
func nodeChecks(config siteconf.Config, node string) []check {
	checks := []check{{"kernel and nft make networks", func(ctx context.Context) error { return vxlan.Probe(ctx, config.NFT, config.ByRoutes(), config.IPv6) }}}
	if config.ByCNI() {
		checks = []check{{"nft removes rules of networks without CNI", func(ctx context.Context) error { return vxlan.ProbeClear(ctx, config.NFT) }}}
	} else if !config.ByRoutes() || len(config.Gateways.On) > 0 {
		checks = append(checks, check{"only root can use the ports of tunnels", func(context.Context) error { return portsOfRoot(unprivileged, config.Tunnel.Port) }},
			check{"all hosts use one port for tunnels", func(ctx context.Context) error { return onePort(ctx, config) }})
	}
	checks = append(checks, siteChecks(config)...)
	checks = append(checks, []check{
		{"this host has one address in hosts", func(context.Context) error {
			_, err := hostAddress(config.Hosts)
			return err
		}},
		{"berth-pod", program("pod", config.Pod)},
		{"squeue", program("squeue", config.Squeue)},
		{"etcd answers", func(ctx context.Context) error { return askEtcd(ctx, config) }},
		{"berthd answers", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, store.Limit)
			defer cancel()
			_, _, err := siteconf.Ask(ctx, config.Run, siteconf.Message{Verb: siteconf.VerbStatus})
			return err
		}},
		{"only root can read the key of etcd", func(context.Context) error { return private(config.Etcd.Key) }},
	}...)
	if config.Policy.Flows > 0 {
		checks = append(checks, check{"policy.flows leaves others connections", func(context.Context) error { return leavesConnections(tracked, config.Policy.Flows) }})
	}
	if config.IPv6.Dual() {
		checks = append(checks, check{"this host speaks IPv6 to the others", func(context.Context) error {
			host, err := hostAddress(config.Hosts)
			if err != nil {
				return err
			}
			return vxlan.CheckIPv6(host)
		}})
	}
	if slices.Contains(config.Gateways.On, node) {
		checks = append(checks, check{"interfaces of this gateway have a link", func(context.Context) error {
			host, err := hostAddress(config.Hosts)
			if err != nil {
				return err
			}
			return vxlan.Carries(host, config.Gateways.Interfaces)
		}}, check{"addresses of gateways.as are no host's", func(context.Context) error {
			return vxlan.CheckAs(config.Gateways.As[node])
		}})
	}
	if !slices.Contains(config.LoginOn, node) && slices.Contains(config.RoutesOn, node) {
		return checks
	}
	if config.DNS.Program != "" {
		checks = append(checks, check{"berth-dns", program("dns.program", config.DNS.Program)},
			check{"no name server listens on all addresses", func(context.Context) error { return noWildcard(53) }},
			check{"names are asked for by resolv.conf", func(context.Context) error { return plainResolver("/etc/nsswitch.conf") }})
	}
	if config.Sessions.Image != "" {
		checks = append(checks, check{"image of sessions", func(context.Context) error { return hasPlaces(config.Sessions) }})
	}
	if config.ByRoutes() {
		checks = append(checks, check{"this node has a subnet of pods", func(context.Context) error { return store.HasSubnet(config, node) }})
	}
	checks = append(checks, check{"Slurm is configured to contain jobs", containsJobs})
	// On login hosts the plugin only provides options for jobs.
	if !slices.Contains(config.LoginOn, node) || config.OptOut {
		checks = append(checks, check{"Slurm loads the plugin", plugged})
	}
	return checks
}

// hasPlaces checks the mounts of sessions. A session cannot start if a path is
// missing on this host, or if the image has no mount point for it.
func hasPlaces(s siteconf.Sessions) error {
	image, err := os.OpenRoot(s.Image)
	if err != nil {
		return fmt.Errorf("open the image of sessions: %w: correct 'sessions.image' in the configuration", err)
	}
	defer image.Close()
	for _, path := range append([]string{"/proc", "/sys", "/dev", "/tmp"}, s.Mounts...) {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("find what sessions show of this host: %w: leave it out of 'sessions.mounts', or make it", err)
		}
		// Links in the image lead to paths in it. OpenRoot does not follow absolute
		// ones.
		if _, err := image.Lstat(strings.TrimPrefix(path, "/")); err != nil {
			return fmt.Errorf("find a place for %s in the image of sessions: %w: mkdir -p %s%s", path, err, s.Image, path)
		}
	}
	return nil
}

// unprivileged is the file with the first port that any user can open.
const unprivileged = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// tracked is the file with the maximum number of connections that this host tracks.
const tracked = "/proc/sys/net/netfilter/nf_conntrack_max"

// podsAtOnce is the number of pods that a host must be able to hold with all their
// connections.
const podsAtOnce = 4

// leavesConnections checks the size of the connection table, which pods and host
// share.
func leavesConnections(path string, flows int) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // no connections are tracked yet
	}
	if err != nil {
		return fmt.Errorf("ask how many connections this host tracks: %w", err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	// For the kernel, 0 means unlimited.
	if most > 0 && most/podsAtOnce < flows {
		return fmt.Errorf("this host tracks %d connections, and each pod may have %d: %d pods keep out the host's own: sysctl -w net.netfilter.nf_conntrack_max=%d, or less in policy.flows",
			most, flows, most/flows+1, 2*podsAtOnce*flows)
	}
	return nil
}

// portsOfRoot checks that tunnel ports are reserved for root. Tunnels accept frames
// only from root's ports. And a user who opens the tunnel port first, on any address
// of the host, keeps the kernel from starting tunnels.
func portsOfRoot(path string, port uint16) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("ask which ports are root's: %w", err)
	}
	first, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if first <= vxlan.LastSource {
		return fmt.Errorf("any user of this host can send from UDP port %d on, and so write frames into every network, on all hosts: sysctl -w net.ipv4.ip_unprivileged_port_start=%d", first, vxlan.LastSource+1)
	}
	if uint64(port) >= first {
		return fmt.Errorf("any user of this host can open UDP port %d first, and no pod here has a network then: choose a port below 512, on all hosts; %d is the usual one", port, siteconf.TunnelPort)
	}
	return nil
}

// namedHosts is the maximum number of hosts that an error lists.
const namedHosts = 5

// onePort checks that all hosts use the same tunnel port. Pods on hosts with
// different ports cannot reach each other.
func onePort(ctx context.Context, config siteconf.Config) error {
	s, err := store.Open(config)
	if err != nil {
		return err
	}
	defer s.Close()
	ports, err := s.TunnelPorts(ctx)
	if err != nil {
		return err
	}
	return samePort(ports, config.Tunnel.Port)
}

func samePort(ports map[string]uint16, own uint16) error {
	others := map[uint16][]string{}
	for _, host := range slices.Sorted(maps.Keys(ports)) {
		if port := ports[host]; port != own {
			others[port] = append(others[port], host)
		}
	}
	var said []string
	for _, port := range slices.Sorted(maps.Keys(others)) {
		hosts, more := others[port], ""
		if n := len(hosts) - namedHosts; n > 0 {
			hosts, more = hosts[:namedHosts], fmt.Sprintf(" and %d more", n)
		}
		said = append(said, fmt.Sprintf("%d on %s%s", port, strings.Join(hosts, ","), more))
	}
	if len(said) == 0 {
		return nil
	}
	return fmt.Errorf("it is %d here and %s, which receive no packets from pods here: with no jobs, write one 'tunnel.port' into the configuration of all hosts, and start berthd again where it was another; "+
		"for a host that has gone: etcdctl del %sHOST", own, strings.Join(said, ", "), store.TunnelsKey)
}

// noWildcard checks that no program listens on all addresses of the host, because it
// would also receive requests for the name server of pods. The check binds an address
// that nothing else uses.
func noWildcard(port int) error {
	remedy := func(err error) error {
		return fmt.Errorf("%w: have the name server of this host listen on single addresses (dnsmasq: bind-dynamic, unbound: interface, bind: listen-on), which it is: ss -lntup sport = :%d", err, port)
	}
	address := fmt.Sprintf("127.98.101.114:%d", port)
	packets, err := net.ListenPacket("udp4", address)
	if err != nil {
		return remedy(err)
	}
	packets.Close()
	connections, err := net.Listen("tcp4", address)
	if err != nil {
		return remedy(err)
	}
	connections.Close()
	return nil
}

func program(option, path string) func(context.Context) error {
	return func(context.Context) error {
		if _, err := exec.LookPath(path); err != nil {
			return fmt.Errorf("%w: correct '%s' in the configuration", err, option)
		}
		return nil
	}
}

func askEtcd(ctx context.Context, config siteconf.Config) error {
	s, err := store.Open(config)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.Check(ctx)
}

// private returns an error if others than the owner can use a file.
func private(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("others may read it: chmod 600 %s", path)
	}
	return nil
}

// plainResolver checks how host names are resolved. If a daemon of the host resolves
// them, jobs do not get the names of pods.
func plainResolver(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == "hosts:" && slices.Contains(fields, "resolve") {
			return fmt.Errorf("jobs would ask systemd-resolved of the host: remove 'resolve' from the line hosts of %s", path)
		}
	}
	return nil
}

// containsJobs asks Slurm's controller whether jobs have an extern step.
func containsJobs(ctx context.Context) error {
	config, err := slurmConfig(ctx)
	if err != nil {
		return err
	}
	if strings.Contains(config["PrologFlags"], "Contain") {
		return nil
	}
	return errors.New("without an extern step no network is made: set PrologFlags=Contain in slurm.conf")
}
