package vxlan

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

// example returns a state where alice has a pod here and one on another node, and her
// own rule; bob has a pod here, in a network that he shares with carol.
func example() State {
	address := netip.MustParseAddr
	all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}
	slurm := siteconf.Rule{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.7/24")}, Ports: []siteconf.Port{{Protocol: "tcp", First: 6817, Last: 6818}, {Protocol: "udp", First: 53, Last: 53}}}
	bob := Owner{UID: 1002, Egress: []siteconf.Rule{slurm}}
	s := State{
		Pods: netip.MustParsePrefix("10.128.0.0/12"), Gateway: address("10.128.0.1"), Host: address("192.168.1.11"), Port: siteconf.TunnelPort, Names: true, Daemons: []uint32{64030},
		Networks: []Network{
			{VNI: 4097, Owners: []Owner{{UID: 1003}, bob}, Local: []Pod{{Address: address("10.128.0.9"), Owner: 1002}, {Address: address("10.128.0.10"), Owner: 1003}}},
			{
				VNI: 4096, Local: []Pod{{Address: address("10.128.0.2"), Owner: 1001}},
				Peers: []Peer{{Address: address("10.128.0.3"), Via: address("192.168.1.12")}},
				Owners: []Owner{{
					UID: 1001, Egress: []siteconf.Rule{slurm, {Addresses: all}},
					Ingress: []siteconf.Rule{{Addresses: all, Ports: []siteconf.Port{{Protocol: "tcp", First: 8000, Last: 8999}}}},
				}},
			},
		},
	}
	s.Sort()
	return s
}

// gateway returns a host without pods that forwards for pods of other hosts.
func gateway() State {
	s := example()
	s.Networks, s.Forwards, s.Interfaces = nil, true, []string{"eth1"}
	s.Outside = []Peer{{Address: netip.MustParseAddr("10.128.0.3"), Via: netip.MustParseAddr("192.168.1.12")}}
	s.Hosts = netip.MustParsePrefix("192.168.0.0/16")
	s.OutsideNetworks = []siteconf.OutsideNetwork{
		{Addresses: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, NAT: true},
		{Addresses: []netip.Prefix{netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("10.0.0.0/8")}},
	}
	return s
}

// far returns a gateway that gives pods addresses, with their node on another link.
func far() State {
	s := gateway()
	s.As = siteconf.AddressRange{First: netip.MustParseAddr("198.51.100.16"), Last: netip.MustParseAddr("198.51.100.19")}
	s.distant = []netip.Addr{netip.MustParseAddr("192.168.1.12")}
	return s
}

// routed returns the two users of example, without tunnels.
func routed() State {
	s := example()
	s.Routed = NewRouted("n1", map[string]netip.Prefix{"n1": netip.MustParsePrefix("10.128.0.0/30"), "n2": netip.MustParsePrefix("10.128.0.4/30")})
	s.uplink = "eth0"
	return s
}

// routedGateway returns a host with its own pods that forwards for other hosts' pods,
// one of them on another link.
func routedGateway() State {
	s := far()
	s.Networks, s.Routed, s.uplink = routed().Networks, routed().Routed, "eth0"
	return s
}

// second is a configuration where pods have IPv6 addresses.
var second = siteconf.IPv6{Pods: netip.MustParsePrefix("fd42:6265:7274:1::/96"), Hosts: netip.MustParsePrefix("2001:db8:1::/64")}

// dual returns the state with IPv6 addresses for pods, and a rule of alice for an
// outside IPv6 address.
func dual(s State) State {
	s.IPv6, s.opened6 = second, true
	for _, n := range s.Networks {
		for i := range n.Owners {
			if n.Owners[i].UID == 1001 {
				n.Owners[i].Egress = append(n.Owners[i].Egress, siteconf.Rule{Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8:2::1/48"), netip.MustParsePrefix("172.16.0.0/12")}})
				n.Owners[i].Ingress = append(n.Owners[i].Ingress, siteconf.Rule{Addresses: []netip.Prefix{netip.MustParsePrefix("::/0")}, Ports: []siteconf.Port{{Protocol: "tcp", First: 22, Last: 22}}})
			}
		}
	}
	s.OutsideNetworks = append(s.OutsideNetworks, siteconf.OutsideNetwork{Addresses: []netip.Prefix{netip.MustParsePrefix("::/0")}, NAT: true},
		siteconf.OutsideNetwork{Addresses: []netip.Prefix{netip.MustParsePrefix("2001:db8:2::/48")}})
	return s
}

// counted returns the state with bounded connections of pods.
func counted(s State) State {
	s.Flows = 8192
	return s
}

// distrusted returns the state with one pod where users may be able to send slurmstepd's mark.
func distrusted(s State) State {
	s.Networks[0].Local[0].Unmarked = true
	return s
}

func TestMarkOfUnmarkedPodIsRemoved(t *testing.T) {
	const chain = `	chain distrust_mark {
		type filter hook prerouting priority -11; policy accept;
		ip saddr { 10.128.0.2 } ip dscp 0x3f ip dscp set cs0
	}
	chain distrust_mark6 {
		type filter hook prerouting priority -11; policy accept;
		ip6 saddr { fd42:6265:7274:1::a80:2 } ip6 dscp 0x3f ip6 dscp set cs0
	}
`
	if rules := distrusted(dual(example())).rules(nil); !strings.Contains(rules, chain) {
		t.Errorf("the mark of a pod is trusted: %s", rules)
	}
}

func TestRulesMatchGolden(t *testing.T) {
	for name, test := range map[string]struct {
		state  State
		opened []string
	}{
		"two-users.nft": {example(), []string{"eth0"}}, "none.nft": {State{}, nil},
		"routed.nft": {routed(), []string{"eth0"}}, "routed-gateway.nft": {routedGateway(), []string{"eth0", "eth1"}},
		"far-gateway.nft": {far(), []string{"eth0", "eth1"}},
		"gateway.nft":     {gateway(), []string{"eth0", "eth1"}}, "idle-gateway.nft": {State{Forwards: true}, nil}, "ipv6-none.nft": {State{Gateway: example().Gateway, IPv6: second}, nil},
		"counted.nft": {counted(dual(example())), []string{"eth0"}},
		"ipv6.nft":    {dual(example()), []string{"eth0"}}, "ipv6-routed-gateway.nft": {dual(routedGateway()), []string{"eth0", "eth1"}},
	} {
		testutil.Golden(t, name, test.state.rules(test.opened))
	}
}

// The kernel accepts the rules, also when they are loaded already.
func TestRulesLoad(t *testing.T) {
	testutil.Require(t, testutil.UserNS)
	for _, state := range []State{example(), gateway(), far(), routed(), routedGateway(), dual(example()), dual(far()), dual(routedGateway()), counted(example()), counted(dual(routed())), distrusted(dual(example())), distrusted(routed()), example()} {
		command := exec.Command("nft", "-c", "-f", "-")
		command.Stdin = strings.NewReader(state.rules([]string{"eth0", "eth1"}))
		command.SysProcAttr = testutil.NewNamespaces()
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
	}
}

func TestOnlyOwnNamesAreServed(t *testing.T) {
	for name, want := range map[string]bool{
		bridgeName(4096): true, tunnelName(1<<24 - 1): true, podName(netip.MustParseAddr("10.128.0.2")): true,
		"berth0": false, "berth": false, "berthb": false, "berthbxyzxyz": false, "berthp0a800002f": false, "eth0": false,
	} {
		if ours(name) != want {
			t.Errorf("ours(%q) = %v", name, !want)
		}
		if want && len(name) > 15 {
			t.Errorf("%s is longer than the kernel allows", name)
		}
	}
}
