package overlay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ipv6UDPOverhead = 40 + 8
	ipv4UDPOverhead = 20 + 8
	largestMTU      = 65520
)

// MTU returns the size of the largest packet, in bytes, that fits into one
// datagram to each of the hosts. It uses the MTU of this host's interfaces and
// routes, less the headers of the overlay, and must be called in the host's
// network namespace. It returns an error if a host has no route, or if fewer than
// 1280 bytes remain.
func MTU(hosts []netip.Addr) (int, error) {
	mtu := largestMTU
	for _, host := range hosts {
		outer, err := pathMTU(host)
		if err != nil {
			return 0, err
		}
		overhead := wireLen + ipv6UDPOverhead
		if host.Unmap().Is4() {
			overhead = wireLen + ipv4UDPOverhead
		}
		mtu = min(mtu, outer-overhead)
	}
	const least = 1280 // the minimum MTU of IPv6
	if mtu < least {
		return 0, fmt.Errorf("find the MTU between nodes: the hosts' network leaves %d bytes, but %d are needed", mtu, least)
	}
	return mtu, nil
}

// pathMTU returns the kernel's MTU towards a host, without sending a packet.
func pathMTU(host netip.Addr) (mtu int, err error) {
	host = host.Unmap()
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(host, 9)))
	if err != nil {
		return 0, fmt.Errorf("find the MTU towards %s: %w", host, err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("find the MTU towards %s: %w", host, err)
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		if host.Is4() {
			mtu, failure = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU)
		} else {
			mtu, failure = unix.GetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU)
		}
	})
	if err := errors.Join(err, failure); err != nil {
		return 0, fmt.Errorf("find the MTU towards %s: %w", host, err)
	}
	return mtu, nil
}

// MaxSuperPacket returns the gso_max_size, in bytes, for the interfaces that
// pods' packets pass. A packet of this size, segmented for the MTU, fits into one
// GSO batch and arrives as one packet. A larger one arrives as two.
func MaxSuperPacket(mtu int) int {
	const tcpHeaders = 20 + 20 + 12
	segment := mtu - tcpHeaders
	if segment <= 0 {
		return maxPacket
	}
	segments := min(maxSegmentsPerBatch, maxUDPPayload/(mtu+wireLen))
	if segments < 2 {
		return maxPacket
	}
	return min(maxPacket, tcpHeaders+segments*segment)
}
