package launch

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
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

// sockets are a host's ends of the network between the nodes: one for packets
// per queue, and one that takes streams of nodes to which no packet gets
// through.
type sockets struct {
	packets []*net.UDPConn
	streams *net.TCPListener
}

// open makes the sockets, in the family of the addresses at which the others
// are.
func (d dataNetwork) open(cpus int, others ...netip.Addr) (s sockets, err error) {
	bind := d.address
	if !bind.IsValid() {
		bind = netip.IPv4Unspecified()
		for _, other := range others {
			if other.Is6() {
				bind = netip.IPv6Unspecified()
			}
		}
	}
	for range max(1, min(cpus, maxQueues)) {
		conn, err := d.openOne(bind)
		if err != nil {
			return s, err
		}
		s.packets = append(s.packets, conn)
	}
	if s.streams, err = listenTCP(bind, d.ports); err != nil {
		err = fmt.Errorf("listen for other nodes: %w", err)
	}
	return s, err
}

func (s sockets) close() {
	for _, conn := range s.packets {
		conn.Close()
	}
	if s.streams != nil {
		s.streams.Close()
	}
}

// files are duplicates, for the process that serves the sockets.
func (s sockets) files() ([]*os.File, error) {
	var files []*os.File
	for _, conn := range s.packets {
		file, err := conn.File()
		if err != nil {
			return nil, fmt.Errorf("hand a socket on: %w", err)
		}
		files = append(files, file)
	}
	file, err := s.streams.File()
	if err != nil {
		return nil, fmt.Errorf("hand a socket on: %w", err)
	}
	return append(files, file), nil
}

// ports are those of the sockets on this host.
type hostPorts struct {
	Packets []uint16
	Streams uint16
}

func (s sockets) ports() hostPorts {
	ports := hostPorts{Streams: uint16(s.streams.Addr().(*net.TCPAddr).Port)}
	for _, conn := range s.packets {
		ports.Packets = append(ports.Packets, uint16(conn.LocalAddr().(*net.UDPAddr).Port))
	}
	return ports
}

// at fills in where a node is reached.
func (p hostPorts) at(host netip.Addr, node overlay.Node) overlay.Node {
	node.Stream = netip.AddrPortFrom(host, p.Streams)
	node.Endpoints = nil
	for _, port := range p.Packets {
		node.Endpoints = append(node.Endpoints, netip.AddrPortFrom(host, port))
	}
	return node
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

func hostOf(address net.Addr) netip.Addr {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// listenTCP tries all ports of a range, from a random one on.
func listenTCP(bind netip.Addr, ports rendezvous.PortRange) (*net.TCPListener, error) {
	size := int(ports.Last) - int(ports.First) + 1
	start := rand.IntN(size)
	for i := range size {
		port := ports.First + uint16((start+i)%size)
		listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(bind, port)))
		if err == nil {
			return listener, nil
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("all TCP ports in %s are taken; choose others with --port-range", ports)
}
