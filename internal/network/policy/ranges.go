package policy

import (
	"net/netip"
	"slices"
)

// Range is an interval of addresses of one family, including both ends.
type Range struct {
	First, Last netip.Addr
}

// Ranges holds sorted ranges without overlaps. IPv4 comes first.
type Ranges []Range

// rangesOf returns the Ranges of addresses, which may be in any order.
func rangesOf(addresses []netip.Addr) Ranges {
	ranges := make(Ranges, 0, len(addresses))
	for _, a := range addresses {
		ranges = append(ranges, Range{a, a})
	}
	return ranges.normal()
}

// block returns the addresses that are in cidr and in no prefix of except.
func block(cidr netip.Prefix, except []netip.Prefix) Ranges {
	left := Ranges{rangeOf(cidr)}
	for _, hole := range except {
		left = left.without(rangeOf(hole))
	}
	return left
}

func rangeOf(prefix netip.Prefix) Range {
	prefix = prefix.Masked()
	last := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last) // last has the length of an address
	return Range{prefix.Addr(), end}
}

// without removes the addresses of hole. A hole of the other family removes nothing,
// because the families do not overlap in netip's order.
func (rs Ranges) without(hole Range) Ranges {
	var left Ranges
	for _, r := range rs {
		if r.Last.Less(hole.First) || hole.Last.Less(r.First) {
			left = append(left, r)
			continue
		}
		if r.First.Less(hole.First) {
			left = append(left, Range{r.First, hole.First.Prev()})
		}
		if hole.Last.Less(r.Last) {
			left = append(left, Range{hole.Last.Next(), r.Last})
		}
	}
	return left
}

// normal sorts the ranges and joins adjacent ones.
func (rs Ranges) normal() Ranges {
	slices.SortFunc(rs, func(a, b Range) int { return a.First.Compare(b.First) })
	var joined Ranges
	for _, r := range rs {
		if n := len(joined); n > 0 && joined[n-1].reaches(r.First) {
			if joined[n-1].Last.Less(r.Last) {
				joined[n-1].Last = r.Last
			}
			continue
		}
		joined = append(joined, r)
	}
	return joined
}

// reaches reports whether a range that begins at start overlaps r or follows it without a
// gap. start must not be before r.
func (r Range) reaches(start netip.Addr) bool {
	return start.Is4() == r.Last.Is4() && (!r.Last.Less(start) || r.Last.Next() == start)
}

// contain reports whether an address is in one of the ranges.
func (rs Ranges) contain(a netip.Addr) bool {
	i, found := slices.BinarySearchFunc(rs, a, func(r Range, a netip.Addr) int { return r.First.Compare(a) })
	return found || i > 0 && !rs[i-1].Last.Less(a)
}
