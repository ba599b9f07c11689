package members

import (
	"net/netip"
	"slices"
	"testing"
)

func TestNodesMeetOverOneFamily(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("2001:db8::1")
	for _, c := range []struct{ from, want []netip.Addr }{
		{[]netip.Addr{six, four}, []netip.Addr{four}},
		{[]netip.Addr{six}, []netip.Addr{six}},
		{[]netip.Addr{four}, []netip.Addr{four}},
	} {
		if got := oneFamily(c.from); !slices.Equal(got, c.want) {
			t.Errorf("of %v: %v", c.from, got)
		}
	}
}
