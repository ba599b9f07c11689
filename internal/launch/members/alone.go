package members

import (
	"context"
	"net/netip"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/network/overlay"
)

// usualMTU is the size in bytes of a packet of a pod that fits into a datagram on a network
// with the usual MTU of 1500, also over IPv6.
const usualMTU = 1428

// prepareAlone opens the sockets of the only node of a step, which nodes of other jobs may
// join. It returns the node's offer with OverlayMTU.
func (m *Members) prepareAlone(ctx context.Context, cpus int) ([]cluster.Offer, error) {
	own, err := m.config.Addresses(ctx, m.config.Node)
	if err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	own = oneFamily(own)
	if m.sockets, err = m.data.Open(cpus, own...); err != nil {
		return nil, exitcode.Wrap(exitcode.Unavailable, err)
	}
	mtu := m.data.MTU
	if mtu == 0 {
		mtu = mtuFrom(own)
	}
	return []cluster.Offer{{OverlayMTU: mtu}}, nil
}

// mtuFrom returns the size of the largest packet of a pod that reaches a neighbour of this
// host. The path to a node may be narrower, and the overlay then cuts packets.
func mtuFrom(own []netip.Addr) int {
	for _, address := range own {
		if address.IsLoopback() || address.IsLinkLocalUnicast() {
			continue
		}
		if mtu, err := overlay.MTU([]netip.Addr{address.Next()}); err == nil {
			return mtu
		}
	}
	return usualMTU
}
