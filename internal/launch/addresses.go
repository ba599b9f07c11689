package launch

import "net/netip"

func prefixes(bits int, addresses ...netip.Addr) []netip.Prefix {
	var all []netip.Prefix
	for _, address := range addresses {
		all = append(all, netip.PrefixFrom(address, bits))
	}
	return all
}

func anyAddress(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
}
