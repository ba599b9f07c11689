package node

import (
	"net/netip"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/cluster"
)

// A connection of the node itself to a Service keeps its port, as connections of
// pods do.
func TestNodeConnectionsKeepTheirPorts(t *testing.T) {
	for want, family := range map[string]cluster.Family{
		"ip saddr != { 10.1.0.0/16, 10.9.0.2 }":   {Pods: netip.MustParsePrefix("10.1.0.0/16"), Node: netip.MustParseAddr("10.9.0.2")},
		"ip6 saddr != { fd00:1::/56, fd00:9::2 }": {Pods: netip.MustParsePrefix("fd00:1::/56"), Node: netip.MustParseAddr("fd00:9::2")},
	} {
		if got := strings.Join(newLocalSources(family).IfNotLocalNFT(), " "); got != want {
			t.Errorf("masqueraded: %s, want %s", got, want)
		}
	}
}
