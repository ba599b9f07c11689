package launch

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
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
// through. This process only holds them.
type sockets struct {
	packets []*os.File
	streams *os.File
	ports   hostPorts
}

// hostPorts are those of the sockets on this host.
type hostPorts struct {
	Packets []uint16
	Streams uint16
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
		conn, err := listenUDP(bind, d.ports)
		if err != nil {
			return s, fmt.Errorf("open a socket between the nodes: %w", err)
		}
		s.ports.Packets = append(s.ports.Packets, uint16(conn.LocalAddr().(*net.UDPAddr).Port))
		held, err := hold(conn)
		if err != nil {
			return s, err
		}
		s.packets = append(s.packets, held)
	}
	listener, err := listenTCP(bind, d.ports)
	if err != nil {
		return s, fmt.Errorf("listen for other nodes: %w", err)
	}
	s.ports.Streams = uint16(listener.Addr().(*net.TCPAddr).Port)
	s.streams, err = hold(listener)
	return s, err
}

// hold keeps a descriptor that another process serves out of Go's poller, which
// would wake this one for each packet.
func hold(original interface {
	syscall.Conn
	io.Closer
}) (*os.File, error) {
	defer original.Close()
	return overlay.Hold(original)
}

// files are what the process gets that serves the sockets.
func (s sockets) files() []*os.File { return append(slices.Clone(s.packets), s.streams) }

func (s sockets) close() {
	for _, file := range s.files() {
		if file != nil {
			file.Close()
		}
	}
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

func hostOf(address net.Addr) netip.Addr {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// listenUDP and listenTCP take a port of a range.
func listenUDP(bind netip.Addr, ports rendezvous.PortRange) (*net.UDPConn, error) {
	return takePort("UDP", ports, func(port uint16) (*net.UDPConn, error) {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind, port)))
	})
}

func listenTCP(bind netip.Addr, ports rendezvous.PortRange) (*net.TCPListener, error) {
	return takePort("TCP", ports, func(port uint16) (*net.TCPListener, error) {
		return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(bind, port)))
	})
}

// takePort tries all ports of a range, from a random one on, until one is free.
func takePort[T any](protocol string, ports rendezvous.PortRange, listen func(uint16) (T, error)) (none T, err error) {
	size := int(ports.Last) - int(ports.First) + 1
	start := rand.IntN(size)
	for i := range size {
		taken, err := listen(ports.First + uint16((start+i)%size))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return taken, err
		}
	}
	return none, fmt.Errorf("all %s ports in %s are taken; choose others with --port-range", protocol, ports)
}
