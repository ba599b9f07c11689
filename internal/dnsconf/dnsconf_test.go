package dnsconf

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

func plan(dns, gateway string) cluster.Plan {
	return cluster.Plan{
		RunID: "job-4711-0",
		Addresses: cluster.Addresses{
			DNS:     netip.MustParseAddr(dns),
			Gateway: netip.MustParseAddr(gateway),
		},
		Paths: cluster.Paths{Run: "/run/berth"},
	}
}

func TestCorefile(t *testing.T) {
	for name, p := range map[string]cluster.Plan{
		"ipv4": plan("10.196.0.3", "10.197.255.1"),
		"ipv6": plan("fd00:be27::3", "fd00:be28::1"),
	} {
		t.Run(name, func(t *testing.T) {
			got := Corefile(p)
			if left := placeholder.Find(got); left != nil {
				t.Errorf("placeholder %s left", left)
			}
			golden := "testdata/" + name + ".Corefile"
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
				t.Errorf("Corefile differs from %s (run with -update if that is meant):\n%s", golden, got)
			}
		})
	}
}
