package dnsconf

import (
	"net/netip"
	"regexp"
	"testing"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/testutil"
)

var placeholder = regexp.MustCompile(`\{[A-Z]+\}`)

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
			testutil.Golden(t, name+".Corefile", string(got))
		})
	}
}
