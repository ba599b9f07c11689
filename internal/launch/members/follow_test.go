package members

import (
	"net/netip"
	"slices"
	"testing"
)

func TestNodesMeetOverOneFamily(t *testing.T) {
	ipv4, ipv6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct{ from, want []netip.Addr }{
		{[]netip.Addr{ipv6, ipv4}, []netip.Addr{ipv4}},
		{[]netip.Addr{ipv6}, []netip.Addr{ipv6}},
		{[]netip.Addr{ipv4}, []netip.Addr{ipv4}},
	} {
		if got := oneFamily(c.from); !slices.Equal(got, c.want) {
			t.Errorf("of %v: %v", c.from, got)
		}
	}
}
