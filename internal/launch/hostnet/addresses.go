package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"berth.dev/berth/internal/job/slurm"
)

// AddressBook returns a function that finds the addresses of the hosts of a run.
func AddressBook(job slurm.Job, getenv func(string) string) (func(ctx context.Context, host string) ([]netip.Addr, error), error) {
	local, err := LocalAddresses()
	if err != nil {
		return nil, err
	}
	look := func(ctx context.Context, name string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	}
	if own := findOwnNetwork(job, getenv, local, look); own != nil {
		return own.addresses, nil
	}
	return addressesOf, nil
}

// LocalAddresses returns the addresses of this host's interfaces.
func LocalAddresses() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this host: %w; 'ip address' has to work in this step", err)
	}
	var local []netip.Addr
	for _, one := range all {
		if prefix, err := netip.ParsePrefix(one.String()); err == nil {
			local = append(local, prefix.Addr())
		}
	}
	return local, nil
}

// reachable returns the addresses of this host for other hosts. Its name resolves to a
// loopback address here, as Debian configures it. reachable takes the other addresses of the
// name, the source addresses of the default routes, or the addresses of the interfaces.
func reachable(found, routed, local []netip.Addr) []netip.Addr {
	for _, addresses := range [][]netip.Addr{found, routed, local} {
		usable := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return a.IsLoopback() || a.IsLinkLocalUnicast() })
		if len(usable) > 0 {
			return usable
		}
	}
	return found
}

// routed returns the source addresses of this host's default routes. It sends no packet.
func routed() (all []netip.Addr) {
	for _, documentation := range []string{"192.0.2.1", "2001:db8::1"} { // RFC 5737 and 3849
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(documentation), 9)))
		if err != nil {
			continue
		}
		all = append(all, conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap())
		conn.Close()
	}
	return all
}

// addressesOf resolves the name of a host. If the name is unknown, it resolves
// the address that Slurm has configured for the node, as Slurm does.
func addressesOf(ctx context.Context, host string) ([]netip.Addr, error) {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if slices.ContainsFunc(addresses, netip.Addr.IsLoopback) {
		local, err := LocalAddresses()
		return reachable(addresses, routed(), local), err
	}
	if !errors.As(err, new(*net.DNSError)) {
		return addresses, err
	}
	configured, askErr := slurm.NodeAddress(ctx, host, slurm.AskSlurm)
	if askErr != nil || configured == host {
		return nil, errors.Join(err, askErr)
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", configured)
}
