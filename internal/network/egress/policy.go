package egress

import (
	"net/netip"
	"slices"
)

// verdict is the decision about a flow.
type verdict int

const (
	forward verdict = iota
	// refuse answers with an error, which the pod receives at once.
	refuse
	// drop sends no answer: RFC 1122, 3.2.2 forbids one to a multicast packet.
	drop
	// serve passes the flow to the gateway itself.
	serve
)

// policy decides about flows by their destinations. A pod with raw sockets must not get
// around it, so it also covers addresses that no kernel would route to the device.
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

// Reaches returns a function that reports whether pods may reach an address of the
// outside.
func (c Config) Reaches() func(netip.Addr) bool {
	p := newPolicy(c)
	return func(to netip.Addr) bool { return p.decide(to) == forward }
}

// Refused returns all ranges that pods may not reach, with the NAT64 form of each
// IPv4 range.
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

// alwaysRefused returns the addresses that lead to the host's loopback: connect(2)
// also reaches it by 0.0.0.0, by :: and by a mapped IPv4 address of loopback.
func alwaysRefused() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/8"),
		netip.MustParsePrefix("127.0.0.0/8"),
		netip.MustParsePrefix("::/96"), // unspecified, loopback, IPv4-compatible
		netip.MustParsePrefix("::ffff:0:0/96"),
		netip.MustParsePrefix("2002:7f00::/24"), // 6to4
	}
}

// nat64 returns the prefix for IPv4 addresses in IPv6-only networks (RFC 6052). The
// host itself may translate them, so the rules for IPv4 apply there too.
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
