package berthd

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
)

func TestCheckNamesMissingKeys(t *testing.T) {
	config := siteconf.Default()
	config.Etcd = siteconf.Etcd{CA: filepath.Join(t.TempDir(), "ca.crt"), Cert: "/none/node.crt", Key: "/none/node.key"}
	err := siteChecks(config)[0].look(t.Context())
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without files: %v", err)
	}
}

func TestCheckNamesUnknownUsersAndHosts(t *testing.T) {
	config := siteconf.Default()
	config.Hosts = netip.MustParsePrefix("127.0.0.0/8")
	config.Groups = map[string][]string{"lab": {"root", "nobody-here"}}
	config.Policy.Users = map[string]siteconf.Rules{"somebody-else": {}}
	config.Policy.Daemons = nil
	config.LoginOn, config.Gateways.On = []string{"localhost"}, []string{"gw.invalid"}
	err := usersExist(t.Context(), config)
	want := "groups.lab: there is no user nobody-here on this host: correct the name in the configuration\npolicy.users: there is no user somebody-else on this host: correct the name in the configuration"
	if err == nil || err.Error() != want {
		t.Errorf("users: %v, want %s", err, want)
	}
	err = hostsExist(t.Context(), config)
	if err == nil || !strings.HasPrefix(err.Error(), "gateways.on: no host gw.invalid: ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("hosts: %v", err)
	}
}

func TestCheckNamesPolicyWithoutSlurm(t *testing.T) {
	slurm := map[string]string{"SlurmctldHost[0]": "ctl(192.168.0.1)", "SlurmctldHost[1]": "ctl2", "SlurmctldPort": "6817", "SlurmdPort": "6818", "SrunPortRange": "60001-63000"}
	rule := func(text string, ports ...siteconf.Port) siteconf.Rule {
		return siteconf.Rule{Addresses: []netip.Prefix{netip.MustParsePrefix(text)}, Ports: ports}
	}
	resolve := func(name string) (netip.Addr, error) {
		if a, known := map[string]string{"ctl2": "192.168.0.2", "login": "192.168.0.3"}[name]; known {
			return netip.MustParseAddr(a), nil
		}
		return netip.Addr{}, errors.New("unknown")
	}
	tcp := func(first, last uint16) siteconf.Port {
		return siteconf.Port{Protocol: "tcp", First: first, Last: last}
	}
	allows := func(policy siteconf.Policy, node netip.Addr) error {
		return allowsSlurm(siteconf.Config{Policy: policy, LoginOn: []string{"login"}}, slurm, node, resolve)
	}
	good := siteconf.Policy{
		Egress:  []siteconf.Rule{rule("192.168.0.0/24", tcp(22, 22), tcp(6817, 6818)), rule("192.168.0.3/32")},
		Ingress: []siteconf.Rule{rule("192.168.0.1/32", tcp(60000, 63000)), rule("192.168.0.2/32")},
	}
	node := netip.MustParseAddr("192.168.0.9")
	if err := allows(good, node); err != nil {
		t.Error(err)
	}
	err := allows(siteconf.Policy{}, node)
	for _, want := range []string{
		"policy.egress: Slurm's commands in jobs do not reach slurmctld on ctl: add {addresses: [192.168.0.1/32], ports: [tcp/6817]}",
		"policy.ingress: slurmctld on ctl2 does not reach srun in jobs: add {addresses: [192.168.0.2/32], ports: [tcp/60001-63000]}",
		"policy.egress: slurmstepd does not reach srun on login: add {addresses: [192.168.0.3/32], ports: [tcp/60001-63000]}",
		"policy.egress: srun in a job does not reach slurmd on this node: add {addresses: [192.168.0.9/32], ports: [tcp/6818]}",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("an empty policy: %v, want %s", err, want)
		}
	}
	slurm["SrunPortRange"] = "0-0"
	if err := allows(good, node); err == nil || !strings.Contains(err.Error(), "slurmctld on ctl does not reach srun in jobs: add {addresses: [192.168.0.1/32], ports: [tcp/32768-60999]}") || strings.Contains(err.Error(), "\n") {
		t.Errorf("without SrunPortRange: %v", err)
	}
}

func TestDoctorReportsAllProblems(t *testing.T) {
	good := check{"a", func(context.Context) error { return nil }}
	bad := check{"b", func(context.Context) error { return errors.New("missing: install it") }}
	var said strings.Builder
	if err := doctor(t.Context(), &said, []check{bad, good, bad}); !errors.Is(err, errDoctor) {
		t.Errorf("%v", err)
	}
	want := "WRONG b: missing: install it\nok    a\nWRONG b: missing: install it\n"
	if said.String() != want {
		t.Errorf("%s, want %s", said.String(), want)
	}
	if err := doctor(t.Context(), &said, []check{good}); err != nil {
		t.Error(err)
	}
}
