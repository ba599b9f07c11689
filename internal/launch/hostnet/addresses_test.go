package hostnet

import (
	"fmt"
	"net/netip"
	"testing"
)

// A host whose name resolves to a loopback address there has the address that others use.
func TestOwnHostIsNotTheLoopback(t *testing.T) {
	at := func(addresses ...string) (all []netip.Addr) {
		for _, a := range addresses {
			all = append(all, netip.MustParseAddr(a))
		}
		return all
	}
	local := at("127.0.0.1", "::1", "192.0.2.7", "172.17.0.1", "fe80::1")
	for name, test := range map[string]struct{ found, routed, want []netip.Addr }{
		"Debian":              {at("127.0.1.1"), at("192.0.2.7"), at("192.0.2.7")},
		"no default route":    {at("127.0.1.1"), nil, at("192.0.2.7", "172.17.0.1")},
		"both addresses":      {at("::1", "127.0.1.1", "192.0.2.8"), at("192.0.2.7"), at("192.0.2.8")},
		"only link addresses": {at("::1"), at("fe80::1"), at("192.0.2.7", "172.17.0.1")},
	} {
		if got := reachable(test.found, test.routed, local); fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	if got := reachable(at("127.0.1.1"), nil, at("127.0.0.1")); fmt.Sprint(got) != "[127.0.1.1]" {
		t.Errorf("without a network: %v", got)
	}
}
