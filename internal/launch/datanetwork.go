package launch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"syscall"

	"berth.dev/berth/internal/overlay"
	"berth.dev/berth/internal/rendezvous"
)

// maxQueues is how many cores of a node carry packets between nodes.
const maxQueues = 4

// dataNetwork is the host's side of the network between the nodes.
type dataNetwork struct {
	ports rendezvous.PortRange
	// address is that of the interface which the user names, mtu the largest
	// packet of a pod's there; the zero values where none is named.
	address netip.Addr
	mtu     int
}

// findDataNetwork looks at the interface that the user names, if any.
func findDataNetwork(name string, ports rendezvous.PortRange) (dataNetwork, error) {
	if name == "" {
		return dataNetwork{ports: ports}, nil
	}
	link, err := net.InterfaceByName(name)
	if err != nil {
		return dataNetwork{}, fmt.Errorf("find interface %s: %w; see with `ip -brief address` which there are", name, err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return dataNetwork{}, fmt.Errorf("list the addresses of interface %s: %w", name, err)
	}
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if err != nil || prefix.Addr().IsLinkLocalUnicast() || prefix.Addr().IsLoopback() {
			continue
		}
		// A neighbour's: one's own leads through the loopback.
		mtu, err := overlay.MTU([]netip.Addr{prefix.Addr().Next()})
		if err != nil {
			return dataNetwork{}, fmt.Errorf("use interface %s: %w", name, err)
		}
		return dataNetwork{ports: ports, address: prefix.Addr(), mtu: mtu}, nil
	}
	return dataNetwork{}, fmt.Errorf("use interface %s: it has no address that other nodes could reach", name)
}

// open makes the sockets for packets between the nodes, in the family of the
// addresses at which the others are.
func (d dataNetwork) open(cpus int, others ...netip.Addr) ([]*net.UDPConn, error) {
	bind := d.address
	if !bind.IsValid() {
		bind = netip.IPv4Unspecified()
		for _, other := range others {
			if other.Is6() {
				bind = netip.IPv6Unspecified()
			}
		}
	}
	var sockets []*net.UDPConn
	for range max(1, min(cpus, maxQueues)) {
		conn, err := d.openOne(bind)
		if err != nil {
			return sockets, err
		}
		sockets = append(sockets, conn)
	}
	return sockets, nil
}

// openOne tries all ports of the range, from a random one on.
func (d dataNetwork) openOne(bind netip.Addr) (*net.UDPConn, error) {
	size := int(d.ports.Last) - int(d.ports.First) + 1
	start := rand.IntN(size)
	for i := range size {
		port := d.ports.First + uint16((start+i)%size)
		conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind, port)))
		if err == nil {
			return conn, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("open a socket between the nodes: %w", err)
		}
	}
	return nil, fmt.Errorf("open a socket between the nodes: all UDP ports in %s are taken; choose others with --port-range", d.ports)
}

// portsOf are the ports of sockets.
func portsOf(sockets []*net.UDPConn) []uint16 {
	var ports []uint16
	for _, conn := range sockets {
		ports = append(ports, uint16(conn.LocalAddr().(*net.UDPAddr).Port))
	}
	return ports
}

// endpoints are sockets of a host.
func endpoints(host netip.Addr, ports []uint16) []netip.AddrPort {
	var all []netip.AddrPort
	for _, port := range ports {
		all = append(all, netip.AddrPortFrom(host, port))
	}
	return all
}

func hostOf(address net.Addr) netip.Addr {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
