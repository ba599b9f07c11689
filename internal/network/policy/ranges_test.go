package policy

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

// TestBlockMatchesItsDefinition compares ranges with prefixes, address by
// address.
func TestBlockMatchesItsDefinition(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for _, base := range []string{"10.0.0.0", "255.255.255.0", "0.0.0.0", "fd00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00"} {
		first := netip.MustParseAddr(base)
		within := func(bits int) netip.Prefix {
			bytes := first.AsSlice()
			bytes[len(bytes)-1] = byte(random.UintN(256))
			a, _ := netip.AddrFromSlice(bytes)
			return netip.PrefixFrom(a, first.BitLen()-bits).Masked()
		}
		for range 200 {
			cidr := within(random.IntN(9))
			except := []netip.Prefix{within(random.IntN(6)), within(random.IntN(4)), within(0)}
			ranges := block(cidr, except)
			for a, n := first, 0; n < 256 && a.IsValid(); a, n = a.Next(), n+1 {
				want := cidr.Contains(a)
				for _, hole := range except {
					want = want && !hole.Contains(a)
				}
				if got := ranges.contain(a); got != want {
					t.Fatalf("%s without %s is %v: contains %s: %t", cidr, except, ranges, a, got)
				}
			}
		}
	}
}

func TestRangesThatTouchAreOne(t *testing.T) {
	address := netip.MustParseAddr
	got := rangesOf([]netip.Addr{address("10.0.0.2"), address("::1"), address("10.0.0.1"), address("10.0.0.4"), address("10.0.0.2"), address("255.255.255.255"), address("::")})
	want := Ranges{
		{address("10.0.0.1"), address("10.0.0.2")}, {address("10.0.0.4"), address("10.0.0.4")},
		{address("255.255.255.255"), address("255.255.255.255")}, {address("::"), address("::1")},
	}
	if len(got) != len(want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}
