package egress

import (
	"net/netip"
	"slices"
)

// A verdict is what becomes of a flow, decided by its destination alone.
type verdict int

const (
	forward verdict = iota
	// refuse answers, so that the pod learns of it at once.
	refuse
	// drop says nothing: an answer to a multicast packet is forbidden
	// (RFC 1122, 3.2.2), and no one waits for it.
	drop
	// serve is the gateway itself.
	serve
)

// policy decides by destination. It has to hold against a pod with raw
// sockets, so it looks at addresses that no kernel would route to the device.
type policy struct {
	gateway netip.Addr
	refused []netip.Prefix
	nat64   netip.Prefix
}

func newPolicy(c Config) policy {
	return policy{
		gateway: c.Gateway,
		nat64:   nat64(),
		refused: append(append(alwaysRefused(), c.Cluster...), c.Refuse...),
	}
}

// Reaches returns a test for addresses: whether pods may reach one as the host
// does.
func (c Config) Reaches() func(netip.Addr) bool {
	p := newPolicy(c)
	return func(to netip.Addr) bool { return p.decide(to) == forward }
}

// Refused are all ranges that pods may not reach, for whoever has only a list to
// decide by. Ranges of IPv4 are there as IPv6-only networks show them, too.
func (c Config) Refused() []netip.Prefix {
	p := newPolicy(c)
	all := slices.Clone(p.refused)
	for _, prefix := range p.refused {
		if prefix.Addr().Is4() {
			bytes, last := p.nat64.Addr().As16(), prefix.Addr().As4()
			copy(bytes[12:], last[:])
			all = append(all, netip.PrefixFrom(netip.AddrFrom16(bytes), p.nat64.Bits()+prefix.Bits()))
		}
	}
	return all
}

// alwaysRefused are the ways to the host's own loopback. A socket that
// connects to 0.0.0.0 or :: is connected to loopback, and so is one that
// connects to an IPv4 address of loopback mapped into IPv6.
func alwaysRefused() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::/96"), // unspecified, loopback, IPv4-compatible
		netip.MustParsePrefix("::ffff:0:0/96"),
		netip.MustParsePrefix("2002:7f00::/24"), // 6to4
	}
}

// nat64 is where IPv6-only networks show IPv4 (RFC 6052). A host may translate
// by itself, so what is refused as IPv4 is refused there too.
func nat64() netip.Prefix { return netip.MustParsePrefix("64:ff9b::/96") }

func (p policy) decide(to netip.Addr) verdict {
	if to == p.gateway {
		return serve
	}
	if to.IsMulticast() || to == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return drop
	}
	if p.nat64.Contains(to) {
		bytes := to.As16()
		if p.decide(netip.AddrFrom4([4]byte(bytes[12:]))) != forward {
			return refuse
		}
	}
	for _, prefix := range p.refused {
		if prefix.Contains(to) {
			return refuse
		}
	}
	return forward
}
