package siteconf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// TunnelPort is the default port of tunnels. It is not VXLAN's own, 4789: the kernel
// binds the port on all addresses when it starts a tunnel. A user who has bound an
// unprivileged port first, on one address, would keep all pods of that host without a
// network. Port 289 requires root and is not assigned by IANA. It is below the ports
// (512 to 1023) that bindresvport and our tunnels use as their source.
const TunnelPort = 289

// ConfigPath is the default path of berthd's configuration.
const ConfigPath = "/etc/berth/site.yaml"

// Config is the configuration of the site network, the same on all nodes.
type Config struct {
	// Cluster is the last label of pods' names.
	Cluster string `yaml:"cluster"`
	// Pods is the range of pods' addresses. Its first address is, on each node, the
	// gateway of the node's pods.
	Pods netip.Prefix `yaml:"pods"`
	// Hosts is a network that contains all hosts. A node has one address in it, where
	// its tunnels end.
	Hosts netip.Prefix `yaml:"hosts"`
	// IPv6 has the ranges of pods' additional IPv6 addresses.
	IPv6 IPv6 `yaml:"ipv6"`
	// Run is the directory for state that must not survive a reboot.
	Run string `yaml:"run"`
	// Pod is the program that is process 1 of each pod.
	Pod    string `yaml:"pod"`
	Etcd   Etcd   `yaml:"etcd"`
	Tunnel Tunnel `yaml:"tunnel"`
	Policy Policy `yaml:"policy"`
	// Gateways configures connections between pods and networks other than the hosts'.
	Gateways Gateways `yaml:"gateways"`
	DNS      DNS      `yaml:"dns"`
	// CNI configures plugins that connect pods instead of tunnels.
	CNI CNI `yaml:"cni"`
	// Routed maps lists of nodes, in Slurm's notation, to subnets, if pods are reached by plain
	// routes instead of tunnels. The first node of a list has the subnet, and each other node
	// the one after its predecessor's.
	Routed map[string]netip.Prefix `yaml:"routed"`
	// Groups lists users who share one network, by the name of the group.
	Groups map[string][]string `yaml:"groups"`
	// RoutesOn lists hosts that reach all pods but have none, such as hosts of
	// Slurm's controller and login hosts. They keep a route to each pod.
	RoutesOn []string `yaml:"routes-on"`
	// LoginOn lists the hosts where users have a pod for their sessions.
	LoginOn []string `yaml:"login-on"`
	// Sessions configures the files that sessions see, also in pods of jobs.
	Sessions Sessions `yaml:"sessions"`
	// Lease is the time that the address of a pod for sessions outlives its host.
	Lease time.Duration `yaml:"lease"`
	// OptOut permits jobs in the hosts' network, by --network-pod=no.
	OptOut bool `yaml:"opt-out"`
	// Audit is the file that records the networks of users over time; "" for none.
	Audit string `yaml:"audit"`
	// Metrics is the address and port for Prometheus; "" for none.
	Metrics string `yaml:"metrics"`
	// Squeue is the path or name of the program squeue.
	Squeue string `yaml:"squeue"`
	// NFT is the path or name of nft.
	NFT string `yaml:"nft"`
	// Collect is the time between two queries of the controller's jobs. If a job's nodes did
	// not release its addresses, they are freed after two queries without the job.
	Collect time.Duration `yaml:"collect"`
}

// Etcd configures the connection to etcd, and the certificates for it.
type Etcd struct {
	Endpoints []string `yaml:"endpoints"`
	CA        string   `yaml:"ca"`
	Cert      string   `yaml:"cert"`
	Key       string   `yaml:"key"`
}

// Tunnel configures VXLAN.
type Tunnel struct {
	Port uint16 `yaml:"port"`
	// FirstVNI is the identifier of the first user's network. Other networks have higher
	// identifiers.
	FirstVNI uint32 `yaml:"first-vni"`
}

// Sessions configures the files that ssh sessions see.
type Sessions struct {
	// Image is the directory of these files; "" for the host's files.
	Image string `yaml:"image"`
	// Mounts lists directories of the host that are mounted in it.
	Mounts []string `yaml:"mounts"`
}

// Limits of berth-session: the longest path of an image and the longest list of mounts, in
// bytes, and the number of mounts.
const maxImagePath, maxMountPaths, maxMounts = 255, 1024, 16

func (s Sessions) validate() []error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	named := func(path string) bool { return pathPattern.MatchString(path) && filepath.Clean(path) == path }
	if s.Image != "" && (!named(s.Image) || len(s.Image) > maxImagePath) {
		wrong("sessions.image %q: give the absolute path of a directory, of up to %d letters, digits and -_./, or leave it out for the host's files", s.Image, maxImagePath)
	}
	if s.Image == "" && len(s.Mounts) > 0 {
		wrong("sessions.mounts: there is no image for them: give 'image', too")
	}
	for _, path := range s.Mounts {
		if !named(path) {
			wrong("sessions.mounts %q: give the absolute path of a directory, of letters, digits and -_./", path)
		}
	}
	if len(s.Mounts) > maxMounts || len(strings.Join(s.Mounts, ":")) > maxMountPaths {
		wrong("sessions.mounts: give up to %d, of %d characters in all", maxMounts, maxMountPaths)
	}
	return problems
}

// CNI configures the site's CNI plugins, which then decide which pods reach each other.
type CNI struct {
	// List is the file with the network configuration list; "" for berthd's tunnels.
	List string `yaml:"list"`
	// Plugins lists the directories of the plugins.
	Plugins []string `yaml:"plugins"`
	// State is the directory with the requests that plugins must undo. It survives a reboot, as
	// the plugins' own state does.
	State string `yaml:"state"`
}

// DNS configures the names of pods.
type DNS struct {
	// Program is berth-dns. Without it, pods have no names and jobs use the resolver of their
	// host.
	Program string `yaml:"program"`
	// Forward lists the servers for all other names: addresses, or a file in the format of
	// resolv.conf. Without any, pods can resolve no other names.
	Forward []string `yaml:"forward"`
	// Search lists the search domains after the job's and the user's domain; the host's search
	// domains if it is nil.
	Search []string `yaml:"search"`
}

// Policy permits connections between pods and others. Pods of one user always reach each
// other; pods of different users never do.
type Policy struct {
	Egress  []Rule `yaml:"egress"`
	Ingress []Rule `yaml:"ingress"`
	// Flows bounds the simultaneous connections of a pod that its host tracks, with hosts and the
	// outside; 0 for no bound.
	Flows int `yaml:"flows"`
	// Users has further rules, by login name.
	Users map[string]Rules `yaml:"users"`
	// Daemons lists users whose processes on a host reach its pods, in addition to root and
	// the pods' owner.
	Daemons []string `yaml:"daemons"`
}

// leastFlows and mostFlows bound policy.flows. A pod needs up to leastFlows connections for
// srun, name lookups and its slurmstepd. No host tracks more than mostFlows.
const leastFlows, mostFlows = 256, 1 << 24

// Gateways are hosts that forward between pods and networks outside.
type Gateways struct {
	// On lists the names of these hosts. Each needs berthd.
	On []string `yaml:"on"`
	// Interfaces lists their interfaces to the outside, in addition to the interface with
	// their address in hosts.
	Interfaces []string `yaml:"interfaces"`
	// As replaces the source address that a gateway gives pods, keyed by the name of
	// the gateway. The addresses are on its link, or the site's routers route them to
	// it.
	As map[string]AddressRange `yaml:"as"`
	// Networks lists the networks behind the gateways. The longest matching prefix counts.
	Networks []OutsideNetwork `yaml:"networks"`
}

// OutsideNetwork is a network that pods reach through gateways.
type OutsideNetwork struct {
	Addresses []netip.Prefix `yaml:"addresses"`
	// NAT gives packets of pods an address of the gateway. Without it, the site's routers send
	// packets for pods to any gateway.
	NAT bool `yaml:"nat"`
}

// AddressRange is a range of IPv4 addresses, from the first to the last.
type AddressRange struct{ First, Last netip.Addr }

// UnmarshalText reads "198.51.100.16-198.51.100.23", "198.51.100.16/29" or one address.
func (r *AddressRange) UnmarshalText(text []byte) error {
	fail := func() error {
		return fmt.Errorf("addresses %q: write 198.51.100.16-198.51.100.23, 198.51.100.16/29 or one IPv4 address, the smaller one first", text)
	}
	if prefix, err := netip.ParsePrefix(string(text)); err == nil {
		if !prefix.Addr().Is4() {
			return fail()
		}
		r.First = prefix.Masked().Addr()
		r.Last = Address(Number(r.First) + 1<<(32-prefix.Bits()) - 1)
		return nil
	}
	first, last, found := strings.Cut(string(text), "-")
	if !found {
		last = first
	}
	var err error
	if r.First, err = netip.ParseAddr(first); err == nil {
		r.Last, err = netip.ParseAddr(last)
	}
	if err != nil || !r.First.Is4() || !r.Last.Is4() || r.Last.Less(r.First) {
		return fail()
	}
	return nil
}

// String returns the form that UnmarshalText reads.
func (r AddressRange) String() string { return r.First.String() + "-" + r.Last.String() }

// size returns the number of addresses.
func (r AddressRange) size() int { return int(Number(r.Last)-Number(r.First)) + 1 }

// All returns the addresses in order. It counts instead of comparing addresses, because
// 255.255.255.255 has no successor.
func (r AddressRange) All() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for i := range r.size() {
			if !yield(Address(Number(r.First) + uint32(i))) {
				return
			}
		}
	}
}

// Contains reports whether an address is in the range.
func (r AddressRange) Contains(a netip.Addr) bool {
	return a.Is4() && !a.Less(r.First) && !r.Last.Less(a)
}

// overlaps reports whether any address is in a prefix.
func (r AddressRange) overlaps(p netip.Prefix) bool {
	return p.IsValid() && (p.Contains(r.First) || p.Contains(r.Last) || !p.Masked().Addr().Less(r.First) && !r.Last.Less(p.Masked().Addr()))
}

// Rules holds the rules for one user.
type Rules struct {
	Egress  []Rule `yaml:"egress"`
	Ingress []Rule `yaml:"ingress"`
}

// Rule allows connections to or from addresses. Without ports it allows all
// protocols.
type Rule struct {
	Addresses []netip.Prefix `yaml:"addresses"`
	// Ports are written as "tcp/22" or "udp/60000-61000".
	Ports []Port `yaml:"ports"`
}

// Port is a range of ports of a protocol.
type Port struct {
	Protocol    string
	First, Last uint16
}

var portPattern = regexp.MustCompile(`^(tcp|udp)/([0-9]{1,5})(?:-([0-9]{1,5}))?$`)

// UnmarshalText reads "tcp/22" or "tcp/1000-2000".
func (p *Port) UnmarshalText(text []byte) error {
	match := portPattern.FindSubmatch(text)
	if match == nil {
		return fmt.Errorf("port %q: write tcp/22 or udp/60000-61000", text)
	}
	last := match[3]
	if last == nil {
		last = match[2]
	}
	if _, err := fmt.Sscan(string(match[2])+" "+string(last), &p.First, &p.Last); err != nil || p.First == 0 || p.Last < p.First {
		return fmt.Errorf("port %q: ports are 1 to 65535, the smaller one first", text)
	}
	p.Protocol = string(match[1])
	return nil
}

// String returns the form that UnmarshalText reads.
func (p Port) String() string {
	if p.First == p.Last {
		return fmt.Sprintf("%s/%d", p.Protocol, p.First)
	}
	return fmt.Sprintf("%s/%d-%d", p.Protocol, p.First, p.Last)
}

// Allows reports whether one of the rules allows connections with an address to all of these
// ports.
func Allows(rules []Rule, address netip.Addr, ports Port) bool {
	return slices.ContainsFunc(rules, func(r Rule) bool {
		return slices.ContainsFunc(r.Addresses, func(p netip.Prefix) bool { return p.Contains(address) }) &&
			(len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p Port) bool {
				return p.Protocol == ports.Protocol && p.First <= ports.First && p.Last >= ports.Last
			}))
	})
}

// Default returns the default configuration, which a site's file overrides.
func Default() Config {
	return Config{
		Cluster: "cluster",
		Run:     "/run/berthd",
		Pod:     "/usr/libexec/berth/berth-pod",
		Tunnel:  Tunnel{Port: TunnelPort, FirstVNI: 4096},
		Policy:  Policy{Daemons: []string{"slurm"}},
		CNI:     CNI{Plugins: []string{"/opt/cni/bin"}, State: "/var/lib/berth/cni"},
		DNS:     DNS{Program: "/usr/libexec/berth/berth-dns", Forward: []string{"/etc/resolv.conf"}},
		Squeue:  "squeue",
		NFT:     "nft",
		Collect: 30 * time.Second,
		Lease:   time.Minute,
		Audit:   "/var/log/berth-audit.log",
	}
}

// Load reads a configuration. An unknown field is an error, because a misspelt rule must not be
// ignored.
func Load(path string) (Config, error) {
	config := Default()
	text, err := os.ReadFile(path)
	if err != nil {
		return config, fmt.Errorf("read configuration of the site network: %w", err)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	// A file with only comments has no document. Validation then reports what is missing.
	if err := decoder.Decode(&config); err != nil && !errors.Is(err, io.EOF) {
		return config, fmt.Errorf("read configuration %s: %w", path, err)
	}
	if err := config.Validate(); err != nil {
		return config, fmt.Errorf("check configuration %s: %w", path, err)
	}
	return config, nil
}

var (
	labelPattern = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	pathPattern  = regexp.MustCompile(`^/[-_.a-zA-Z0-9/]+$`)
)

// maxVNI is the largest identifier of a network; they have 24 bits.
const maxVNI = 1<<24 - 1

// Validate returns all problems in one error, one a line.
func (c Config) Validate() error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !labelPattern.MatchString(c.Cluster) {
		wrong("cluster %q: use lowercase letters, digits and dashes", c.Cluster)
	}
	if !c.Pods.IsValid() || !c.Pods.Addr().Is4() || c.Pods.Bits() < 8 || c.Pods.Bits() > 28 {
		wrong("pods %v: give an IPv4 range from /8 to /28, 10.128.0.0/12 say", c.Pods)
	}
	if !c.Hosts.IsValid() || !c.Hosts.Addr().Is4() {
		wrong("hosts %v: give the IPv4 network of the hosts", c.Hosts)
	}
	if c.Pods.IsValid() && c.Pods.Overlaps(c.Hosts) {
		wrong("pods %v overlaps hosts %v: choose a range that the site does not use", c.Pods, c.Hosts)
	}
	if !filepath.IsAbs(c.Run) {
		wrong("run %q: give an absolute path", c.Run)
	}
	if len(c.Etcd.Endpoints) == 0 {
		wrong("etcd.endpoints: give at least one, https://host:2379")
	}
	for name, path := range map[string]string{"ca": c.Etcd.CA, "cert": c.Etcd.Cert, "key": c.Etcd.Key} {
		if !filepath.IsAbs(path) {
			wrong("etcd.%s %q: give an absolute path; without TLS every user of the network could change addresses", name, path)
		}
	}
	if c.Collect < time.Second {
		wrong("collect %s: choose at least 1s", c.Collect)
	}
	if c.Audit != "" && !filepath.IsAbs(c.Audit) {
		wrong("audit %q: give an absolute path, or \"\" for none", c.Audit)
	}
	if _, err := netip.ParseAddrPort(c.Metrics); c.Metrics != "" && err != nil {
		wrong("metrics %q: give an address and a port, 127.0.0.1:9418 say, or \"\" for none", c.Metrics)
	}
	if c.Lease < 2*time.Second {
		wrong("lease %s: choose at least 2s", c.Lease)
	}
	if c.Tunnel.Port == 0 {
		wrong("tunnel.port: give a UDP port, %d is the usual one", TunnelPort)
	}
	if c.Tunnel.FirstVNI == 0 || c.Tunnel.FirstVNI > maxVNI {
		wrong("tunnel.first-vni %d: choose 1 to %d", c.Tunnel.FirstVNI, maxVNI)
	}
	if c.DNS.Program != "" && !filepath.IsAbs(c.DNS.Program) {
		wrong("dns.program %q: give an absolute path, or \"\" for none", c.DNS.Program)
	}
	for _, server := range c.DNS.Forward {
		if _, err := netip.ParseAddr(server); err != nil && !pathPattern.MatchString(server) {
			wrong("dns.forward %q: give the address of a name server, or a file such as /etc/resolv.conf", server)
		}
	}
	for _, domain := range c.DNS.Search {
		for part := range strings.SplitSeq(domain, ".") {
			if !labelPattern.MatchString(part) {
				wrong("dns.search %q: give a domain in lowercase letters, without a dot at its end", domain)
				break
			}
		}
	}
	return errors.Join(slices.Concat(problems, c.checkPolicy(), c.checkGateways(), c.checkCNI(), c.checkRouted(),
		c.checkGroups(), c.checkIPv6(), c.Sessions.validate())...)
}

func (c Config) checkPolicy() (problems []error) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	check := func(where string, rules []Rule) {
		for i, rule := range rules {
			if len(rule.Addresses) == 0 {
				wrong("%s[%d]: addresses are missing; 0.0.0.0/0 means all", where, i)
			}
			for _, prefix := range rule.Addresses {
				if why := c.notOurs(prefix.Addr()); why != "" {
					wrong("%s[%d]: %v %s", where, i, prefix, why)
				}
				if prefix.Bits() > 0 && (prefix.Overlaps(c.Pods) || prefix.Overlaps(c.IPv6.Pods)) {
					wrong("%s[%d]: %v has pods in it, whose traffic is not a matter of rules", where, i, prefix)
				}
			}
		}
	}
	if n := c.Policy.Flows; n < 0 || n > 0 && n < leastFlows || n > mostFlows {
		wrong("policy.flows: %d: give from %d to %d connections for a pod, or leave it out", n, leastFlows, mostFlows)
	}
	check("policy.egress", c.Policy.Egress)
	check("policy.ingress", c.Policy.Ingress)
	for user, rules := range c.Policy.Users {
		check("policy.users."+user+".egress", rules.Egress)
		check("policy.users."+user+".ingress", rules.Ingress)
	}
	return problems
}

var interfacePattern = regexp.MustCompile(`^[-_.a-zA-Z0-9]{1,15}$`)

func (c Config) checkGateways() []error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if (len(c.Gateways.On) == 0) != (len(c.Gateways.Networks) == 0) {
		wrong("gateways: give both the hosts (on) and what they lead to (networks), 0.0.0.0/0 for all")
	}
	for _, name := range c.Gateways.Interfaces {
		if !interfacePattern.MatchString(name) {
			wrong("gateways.interfaces %q: give the name of an interface, eth1 say", name)
		}
	}
	problems = append(problems, c.checkAs()...)
	seen := map[netip.Prefix]bool{}
	for i, network := range c.Gateways.Networks {
		if len(network.Addresses) == 0 {
			wrong("gateways.networks[%d]: addresses are missing; 0.0.0.0/0 means all", i)
		}
		for _, prefix := range network.Addresses {
			why := c.notOurs(prefix.Addr())
			switch {
			case why != "":
				wrong("gateways.networks[%d]: %v %s", i, prefix, why)
			case within(prefix, c.Pods) || within(prefix, c.Hosts) || within(prefix, c.IPv6.Pods) || within(prefix, c.IPv6.Hosts):
				wrong("gateways.networks[%d]: %v is inside of pods or hosts, which are reached without gateways", i, prefix)
			case seen[prefix.Masked()]:
				wrong("gateways.networks[%d]: %v is there twice", i, prefix)
			}
			seen[prefix.Masked()] = true
		}
	}
	return problems
}

// maxAs bounds the addresses of gateways.as for a gateway, which answers ARP for each of them.
const maxAs = 256

func (c Config) checkAs() []error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	given := c.named()
	for _, name := range slices.Sorted(maps.Keys(c.Gateways.As)) {
		if !slices.Contains(c.Gateways.On, name) {
			wrong("gateways.as.%s: it is not one of the gateways (on)", name)
		}
		addresses := c.Gateways.As[name]
		if !addresses.First.IsValid() {
			wrong("gateways.as.%s: addresses are missing", name)
			continue
		}
		if addresses.size() > maxAs {
			wrong("gateways.as.%s: %s are %d addresses: give up to %d", name, addresses, addresses.size(), maxAs)
			continue
		}
		if addresses.overlaps(c.Pods) {
			wrong("gateways.as.%s: %s has pods in it", name, addresses)
		}
		for a := range addresses.All() {
			if given[a] != "" {
				wrong("gateways.as.%s: %s is one of %s already", name, a, given[a])
				break
			}
			given[a] = name
		}
	}
	return problems
}

// named maps the addresses of name servers and of etcd to the option that names them. Host
// names and invalid entries are left out.
func (c Config) named() map[netip.Addr]string {
	named := map[netip.Addr]string{}
	for _, server := range c.DNS.Forward {
		if a, err := netip.ParseAddr(server); err == nil {
			named[a] = "dns.forward"
		}
	}
	for _, endpoint := range c.Etcd.Endpoints {
		u, err := url.Parse(endpoint)
		if err != nil {
			continue
		}
		if a, err := netip.ParseAddr(u.Hostname()); err == nil {
			named[a] = "etcd.endpoints"
		}
	}
	return named
}

// ByCNI reports whether plugins connect pods.
func (c Config) ByCNI() bool { return c.CNI.List != "" }

// checkCNI returns the problems of 'cni', and the options that have no effect with plugins.
func (c Config) checkCNI() []error {
	if !c.ByCNI() {
		return nil
	}
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if !filepath.IsAbs(c.CNI.List) {
		wrong("cni.list %q: give an absolute path", c.CNI.List)
	}
	if !filepath.IsAbs(c.CNI.State) {
		wrong("cni.state %q: give an absolute path that outlives a boot", c.CNI.State)
	}
	if len(c.CNI.Plugins) == 0 || slices.ContainsFunc(c.CNI.Plugins, func(dir string) bool { return !filepath.IsAbs(dir) }) {
		wrong("cni.plugins %q: give the directories of the plugins, as absolute paths", c.CNI.Plugins)
	}
	if len(c.Policy.Egress)+len(c.Policy.Ingress)+len(c.Policy.Users)+c.Policy.Flows > 0 {
		wrong("policy: with 'cni' the plugins decide who reaches whom: omit egress, ingress, flows and users, or 'cni'")
	}
	if len(c.Gateways.On) > 0 {
		wrong("gateways: with 'cni' the plugins connect to the outside: omit 'gateways', or 'cni'")
	}
	if len(c.RoutesOn) > 0 {
		wrong("routes-on: with 'cni' routes to pods are the plugins' or the site's: leave out 'routes-on', or 'cni'")
	}
	return problems
}

// groupPattern matches names of groups, which must differ from the number of any user.
var groupPattern = regexp.MustCompile(`^[a-z][-_a-z0-9]{0,31}$`)

func (c Config) checkGroups() []error {
	var problems []error
	groups := map[string]string{}
	for _, group := range slices.Sorted(maps.Keys(c.Groups)) {
		if !groupPattern.MatchString(group) {
			problems = append(problems, fmt.Errorf("groups.%s: use up to 32 lowercase letters, digits, dashes and underscores, a letter first", group))
		}
		for _, user := range c.Groups[group] {
			if groups[user] != "" {
				problems = append(problems, fmt.Errorf("groups.%s: %s is in %s already: a user has one network", group, user, groups[user]))
			}
			groups[user] = group
		}
	}
	return problems
}

// GroupOf returns the group that shares a network with a user, or "".
func (c Config) GroupOf(user string) string {
	for group, members := range c.Groups {
		if slices.Contains(members, user) {
			return group
		}
	}
	return ""
}

// within reports whether outer contains all addresses of inner.
func within(inner, outer netip.Prefix) bool {
	return outer.IsValid() && inner.Bits() >= outer.Bits() && outer.Overlaps(inner)
}

// Gateway returns the address that each node has for its own pods, as their gateway.
func (c Config) Gateway() netip.Addr { return c.Pods.Masked().Addr().Next() }
