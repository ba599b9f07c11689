package containerdconf

import (
	"net/netip"
	"regexp"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/testutil"
)

var placeholder = regexp.MustCompile(`\{[A-Z]+\}`)

func examplePlan() cluster.Plan {
	return cluster.Plan{
		PodMTU:         cluster.LocalMTU,
		PodSuperPacket: 61476,
		RunID:          "job-4711-0",
		Snapshotter:    "overlayfs",
		Node:           cluster.Node{CPUs: 4, CPUSet: "0-3", MemoryBytes: 4 << 30, ReservedMemoryBytes: 512 << 20},
		Addresses: cluster.Addresses{
			Family: cluster.Family{NodePods: netip.MustParsePrefix("10.200.3.0/24")},
		},
		Paths: cluster.Paths{
			Libexec: "/opt/berth/libexec/berth",
			Run:     "/run/berth",
			Scratch: `/scratch/a "quoted" place`,
		},
	}
}

func TestGolden(t *testing.T) {
	four, both := examplePlan(), examplePlan()
	both.Addresses.IPv6 = &cluster.Family{NodePods: netip.MustParsePrefix("fd00:be28:0:3::/64")}
	mirrored, closed, named := examplePlan(), examplePlan(), examplePlan()
	mirrored.Registries = cluster.Registries{Mirror: cluster.MirrorAddress}
	closed.Registries = cluster.Registries{Mirror: cluster.MirrorAddress, NoPull: true, Servers: map[string]string{"a.test": "http://a.test"}}
	named.Registries = cluster.Registries{Mirror: cluster.MirrorAddress, Servers: map[string]string{
		"a.test:5000": "http://a.test:5000", "docker.io": "https://proxy.test/v2/hub",
	}}
	hosts := func(plan cluster.Plan, registry string) []byte {
		return RegistryHosts(plan)["/run/berth/registry-hosts/"+registry+"/hosts.toml"]
	}
	for name, got := range map[string][]byte{
		"containerd.toml":     Containerd(four),
		"ipv4.conflist":       CNI(four),
		"dual.conflist":       CNI(both),
		"no-pull.hosts.toml":  hosts(closed, "_default"),
		"named.hosts.toml":    hosts(named, "a.test:5000"),
		"projects.hosts.toml": hosts(named, "docker.io"),
	} {
		t.Run(name, func(t *testing.T) {
			if left := placeholder.Find(got); left != nil {
				t.Errorf("placeholder %s left", left)
			}
			testutil.Golden(t, name, string(got))
		})
	}
	for text, c := range map[string]struct {
		plan cluster.Plan
		want int
	}{
		"pulls without a mirror": {four, 0}, "a mirror": {mirrored, 0},
		"no pull, whatever else": {closed, 1}, "two registries": {named, 2},
	} {
		if got := RegistryHosts(c.plan); len(got) != c.want {
			t.Errorf("%s: %d files, want %d", text, len(got), c.want)
		}
	}
}

func TestSeveralNodesShareLayers(t *testing.T) {
	plan := examplePlan()
	plan.Index, plan.Addresses.Nodes = 1, netip.MustParsePrefix("100.64.0.0/24")
	for _, address := range []string{"100.64.0.1/32", "100.64.0.2/32"} {
		plan.Members = append(plan.Members, cluster.Member{Prefixes: []netip.Prefix{netip.MustParsePrefix(address)}})
	}
	const want = "nodes = [\"100.64.0.1:61501\", \"100.64.0.2:61501\"]\n  self = 1\n"
	if got := string(Containerd(plan)); !strings.Contains(got, want) {
		t.Errorf("no %s in %s", want, got)
	}
	plan.Members = plan.Members[:1]
	if got := string(Containerd(plan)); !strings.Contains(got, "nodes = []\n") {
		t.Errorf("a node alone shares layers: %s", got)
	}
}

func TestAllowanceFitsReserve(t *testing.T) {
	for reserved, want := range map[uint64]uint64{
		0:         64 << 20,
		512 << 20: 128 << 20,
		8 << 30:   256 << 20,
	} {
		if got := allowance(reserved); got != want {
			t.Errorf("reserved %d: allowance %d, want %d", reserved, got, want)
		}
	}
}
