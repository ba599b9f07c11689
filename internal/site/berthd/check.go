package berthd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/site/berthd/store"
	"berth.dev/berth/internal/site/podcni"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/site/vxlan"
)

// check is one requirement of a node. Its error names the remedy.
type check struct {
	name string
	look func(context.Context) error
}

// errDoctor reports that problems were found. They have been printed already.
var errDoctor = errors.New("something is missing: see above")

// doctor runs all checks and prints their results. It returns errDoctor if one has failed.
func doctor(ctx context.Context, w io.Writer, checks []check) error {
	bad := false
	for _, c := range checks {
		line := "ok    " + c.name
		if err := c.look(ctx); err != nil {
			bad = true
			line = fmt.Sprintf("WRONG %s: %v", c.name, err)
		}
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	if bad {
		return errDoctor
	}
	return nil
}

// siteChecks returns the checks of what the configuration names: keys, users, hosts and
// networks. They need neither a running berthd nor root, and 'berthd check' runs only these.
func siteChecks(config siteconf.Config) []check {
	checks := []check{
		{"keys for etcd", func(context.Context) error {
			s, err := store.Open(config)
			if err != nil {
				return err
			}
			return s.Close()
		}},
		{"users exist", func(ctx context.Context) error { return usersExist(ctx, config) }},
		{"hosts exist", func(ctx context.Context) error { return hostsExist(ctx, config) }},
	}
	if config.ByCNI() {
		return append(checks, check{"CNI plugins are there", func(ctx context.Context) error { return openCNI(ctx, config) }})
	}
	return append(checks,
		check{"no other network of this host has addresses of pods", func(context.Context) error {
			return vxlan.CheckRanges(config.ByRoutes(), config.Pods, config.IPv6.Pods)
		}},
		check{"policy lets Slurm's commands work in jobs", func(ctx context.Context) error { return slurmAllowed(ctx, config) }},
	)
}

func openCNI(ctx context.Context, config siteconf.Config) error {
	_, err := podcni.Open(ctx, config.CNI.List, config.CNI.Plugins, config.CNI.State, func() {})
	return err
}

// usersExist looks for all users that the configuration names.
func usersExist(ctx context.Context, config siteconf.Config) error {
	option := map[string]string{}
	for group, members := range config.Groups {
		for _, name := range members {
			option[name] = "groups." + group
		}
	}
	for name := range config.Policy.Users {
		option[name] = "policy.users"
	}
	for _, name := range config.Policy.Daemons {
		option[name] = "policy.daemons"
	}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(option)) {
		if _, err := userID(ctx, name); err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", option[name], err))
		}
	}
	return errors.Join(problems...)
}

// hostsExist looks for all hosts that the configuration names, except nodes with subnets, of
// which there may be many. A host exists if its name leads to an address in 'hosts', or if its
// berthd is registered in etcd, possibly with a name that only Slurm knows.
func hostsExist(ctx context.Context, config siteconf.Config) error {
	option := map[string]string{}
	for _, of := range []struct {
		name  string
		hosts []string
	}{{"login-on", config.LoginOn}, {"routes-on", config.RoutesOn}, {"gateways.on", config.Gateways.On}} {
		for _, host := range of.hosts {
			option[host] = of.name
		}
	}
	var missing []string
	for _, host := range slices.Sorted(maps.Keys(option)) {
		addresses, _ := net.DefaultResolver.LookupNetIP(ctx, "ip4", host)
		if !slices.ContainsFunc(addresses, func(a netip.Addr) bool { return config.Hosts.Contains(a.Unmap()) }) {
			missing = append(missing, host)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	registered := map[string]netip.Addr{}
	if s, err := store.Open(config); err == nil {
		// Without etcd, only the resolver knows hosts.
		registered, _ = s.Nodes(ctx)
		_ = s.Close()
	}
	var problems []error
	for _, host := range missing {
		if _, known := registered[host]; !known {
			problems = append(problems, fmt.Errorf("%s: no host %s: its name leads to no address in hosts %s, and no berthd has registered with it: correct the name in the configuration, or start berthd there", option[host], host, config.Hosts))
		}
	}
	return errors.Join(problems...)
}

// slurmAllowed checks that the rules for all users let programs in a job call Slurm: srun and
// squeue ask slurmctld, srun sends tasks to slurmd, and slurmctld tells srun when the job ends.
// slurmstepd itself needs a rule only for what tasks write to an srun outside of pods.
func slurmAllowed(ctx context.Context, config siteconf.Config) error {
	slurm, err := slurmConfig(ctx)
	if errors.Is(err, exec.ErrNotFound) {
		return nil // such as a gateway
	}
	if err != nil {
		return err
	}
	host, err := hostAddress(config.Hosts)
	if err != nil {
		return err
	}
	return allowsSlurm(config, slurm, host, func(name string) (netip.Addr, error) {
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", name)
		if err != nil {
			return netip.Addr{}, err
		}
		return addresses[0].Unmap(), nil
	})
}

// dynamicPorts are the ports where srun listens without SrunPortRange. Linux chooses from
// ip_local_port_range, whose default this is.
var dynamicPorts = siteconf.Port{Protocol: "tcp", First: 32768, Last: 60999}

func allowsSlurm(config siteconf.Config, slurm map[string]string, host netip.Addr, resolve func(string) (netip.Addr, error)) error {
	policy := config.Policy
	var problems []error
	require := func(option string, rules []siteconf.Rule, a netip.Addr, port siteconf.Port, effect string) {
		if !siteconf.Allows(rules, a, port) {
			problems = append(problems, fmt.Errorf("%s: %s: add {addresses: [%s/32], ports: [%s]}", option, effect, a, port))
		}
	}
	control, err := portsOf(slurm["SlurmctldPort"])
	if err != nil {
		return fmt.Errorf("read SlurmctldPort: %w", err)
	}
	daemon, err := portsOf(slurm["SlurmdPort"])
	if err != nil {
		return fmt.Errorf("read SlurmdPort: %w", err)
	}
	srun := dynamicPorts
	if text := slurm["SrunPortRange"]; strings.Trim(text, "0-") != "" {
		if srun, err = portsOf(text); err != nil {
			return fmt.Errorf("read SrunPortRange: %w", err)
		}
	}
	for i := 0; slurm[fmt.Sprintf("SlurmctldHost[%d]", i)] != ""; i++ {
		name, address, _ := strings.Cut(strings.TrimSuffix(slurm[fmt.Sprintf("SlurmctldHost[%d]", i)], ")"), "(")
		a, err := netip.ParseAddr(address)
		if err != nil {
			a, err = resolve(cmp.Or(address, name))
		}
		if err != nil {
			problems = append(problems, fmt.Errorf("find slurmctld's host %s: %w", name, err))
			continue
		}
		require("policy.egress", policy.Egress, a, control, "Slurm's commands in jobs do not reach slurmctld on "+name)
		require("policy.ingress", policy.Ingress, a, srun, "slurmctld on "+name+" does not reach srun in jobs")
	}
	for _, name := range config.LoginOn {
		// Hosts that do not exist are another check's matter.
		if a, err := resolve(name); err == nil {
			require("policy.egress", policy.Egress, a, srun, "slurmstepd does not reach srun on "+name)
		}
	}
	require("policy.egress", policy.Egress, host, daemon, "srun in a job does not reach slurmd on this node")
	return errors.Join(problems...)
}

// portsOf parses a port or a range of ports as scontrol prints it.
func portsOf(text string) (siteconf.Port, error) {
	first, last, found := strings.Cut(text, "-")
	if !found {
		last = first
	}
	low, err1 := strconv.ParseUint(first, 10, 16)
	high, err2 := strconv.ParseUint(last, 10, 16)
	return siteconf.Port{Protocol: "tcp", First: uint16(low), Last: uint16(high)}, errors.Join(err1, err2)
}
