package runtimeconf

import (
	"flag"
	"net/netip"
	"os"
	"regexp"
	"testing"

	"berth.dev/berth/internal/cluster"
)

var (
	update      = flag.Bool("update", false, "write the golden files anew")
	placeholder = regexp.MustCompile(`\{[A-Z]+\}`)
)

func examplePlan() cluster.Plan {
	return cluster.Plan{
		RunID: "job-4711-0",
		Node:  cluster.Node{ReservedMemoryBytes: 512 << 20},
		Addresses: cluster.Addresses{
			NodePods: netip.MustParsePrefix("10.200.3.0/24"),
		},
		Paths: cluster.Paths{
			Libexec: "/opt/berth/libexec/berth",
			Run:     "/run/berth",
			Scratch: `/scratch/a "quoted" place`,
		},
	}
}

func TestGolden(t *testing.T) {
	four, six := examplePlan(), examplePlan()
	six.Addresses.NodePods = netip.MustParsePrefix("fd00:be28:0:3::/64")
	mirrored, closed, alone := examplePlan(), examplePlan(), examplePlan()
	mirrored.Registries = cluster.Registries{Mirror: "127.0.0.1:5000"}
	closed.Registries = cluster.Registries{Mirror: "127.0.0.1:5000", NoPull: true}
	alone.Registries = cluster.Registries{NoPull: true}
	for name, got := range map[string][]byte{
		"containerd.toml":     Containerd(four),
		"ipv4.conflist":       CNI(four),
		"ipv6.conflist":       CNI(six),
		"mirror.hosts.toml":   RegistryHosts(mirrored),
		"no-pull.hosts.toml":  RegistryHosts(closed),
		"archives.hosts.toml": RegistryHosts(alone),
	} {
		t.Run(name, func(t *testing.T) {
			if left := placeholder.Find(got); left != nil {
				t.Errorf("placeholder %s left", left)
			}
			golden := "testdata/" + name
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("differs from %s (run with -update if that is meant):\n%s", golden, got)
			}
		})
	}
	if got := RegistryHosts(four); got != nil {
		t.Errorf("pulls without a mirror need no hosts file, got:\n%s", got)
	}
}

func TestAllowanceFitsTheReserve(t *testing.T) {
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
