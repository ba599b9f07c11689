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
		conn, err := d.openOne(bind)
		if err != nil {
			return s, err
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
