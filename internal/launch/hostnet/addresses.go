package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

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

// addressesOf resolves the name of a host. If the name is unknown, it resolves
// the address that Slurm has configured for the node, as Slurm does.
func addressesOf(ctx context.Context, host string) ([]netip.Addr, error) {
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if !errors.As(err, new(*net.DNSError)) {
		return addresses, err
	}
	configured, askErr := slurm.NodeAddress(ctx, host, slurm.AskSlurm)
	if askErr != nil || configured == host {
		return nil, errors.Join(err, askErr)
	}
	return net.DefaultResolver.LookupNetIP(ctx, "ip", configured)
}
