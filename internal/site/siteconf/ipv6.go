package siteconf

import (
	"fmt"
	"net/netip"
)

// IPv6 configures a second address for each pod. The IPv4 address forms its last 32
// bits, so owner, lifetime and route follow from the IPv4 address, and etcd need not
// store it.
type IPv6 struct {
	// Pods is the range of these addresses, a /96.
	Pods netip.Prefix `yaml:"pods"`
	// Hosts is the IPv6 network of the hosts, if they have one.
	Hosts netip.Prefix `yaml:"hosts"`
}

// embeddedBits is the length of the prefix before the IPv4 address.
const embeddedBits = 96

// Dual reports whether pods have two addresses.
func (v IPv6) Dual() bool { return v.Pods.IsValid() }

// Second returns the IPv6 address that belongs to an IPv4 address in the range of
// pods. It is invalid without IPv6.
func (v IPv6) Second(address netip.Addr) netip.Addr {
	if !v.Dual() || !address.Is4() {
		return netip.Addr{}
	}
	return embed(v.Pods.Masked().Addr(), address)
}

// SecondOf returns the IPv6 prefix that belongs to a range of IPv4 addresses of pods.
func (v IPv6) SecondOf(prefix netip.Prefix) netip.Prefix {
	return netip.PrefixFrom(v.Second(prefix.Addr()), embeddedBits+prefix.Bits())
}

// NextHop returns the address where other hosts on its link send IPv6 packets for a
// host. It follows from the host's IPv4 address, so hosts need no other IPv6
// addresses.
func NextHop(host netip.Addr) netip.Addr {
	return embed(netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: 'b', 9: 'e', 10: 'r', 11: 't'}), host)
}

// embed replaces the last 32 bits of an IPv6 address with an IPv4 address.
func embed(in, address netip.Addr) netip.Addr {
	all, last := in.As16(), address.As4()
	copy(all[embeddedBits/8:], last[:])
	return netip.AddrFrom16(all)
}

func (c Config) checkIPv6() []error {
	var problems []error
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	pods, hosts := c.IPv6.Pods, c.IPv6.Hosts
	if !c.IPv6.Dual() {
		if hosts.IsValid() {
			wrong("ipv6.hosts: pods have no IPv6 addresses: give 'ipv6.pods' as well, or leave out 'ipv6'")
		}
		return problems
	}
	if !isIPv6(pods.Addr()) || pods.Bits() != embeddedBits || !pods.Masked().Addr().IsGlobalUnicast() {
		wrong("ipv6.pods %v: give a /96 of IPv6 addresses that the site does not use, fd42:6265:7274:1::/96 say", pods)
	}
	if hosts.IsValid() && !isIPv6(hosts.Addr()) {
		wrong("ipv6.hosts %v: give the IPv6 network of the hosts, or leave it out", hosts)
	}
	if pods.Overlaps(hosts) {
		wrong("ipv6.pods %v overlaps ipv6.hosts %v: choose a range that the site does not use", pods, hosts)
	}
	if c.ByCNI() {
		wrong("ipv6: with 'cni' the plugins give addresses: leave out 'ipv6', or 'cni'")
	}
	return problems
}

func isIPv6(a netip.Addr) bool { return a.Is6() && !a.Is4In6() }

// notOurs returns why an outside address cannot be in the configuration, or "".
func (c Config) notOurs(a netip.Addr) string {
	switch {
	case a.Is4() || isIPv6(a) && c.IPv6.Dual():
		return ""
	case isIPv6(a):
		return "is not IPv4, and pods have no IPv6 addresses without 'ipv6.pods'"
	}
	return "is not an address"
}
