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

	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/network/fastpath"
	"berth.dev/berth/internal/network/overlay"
)

// numSwitchPorts is the number of listening ports of a Switch. A host has 28,000
// local ports for connections to each of them, and keeps a used port for a
// minute.
const numSwitchPorts = 2

// headPorts counts the TCP ports of the head without its Switch: for the
// rendezvous, for streams of packets, and for archives.
const headPorts = 3

// maxQueues bounds the number of cores of a node that carry packets between
// nodes.
const maxQueues = 4

// dataNetwork is the host's side of the network between the nodes.
type dataNetwork struct {
	ports rendezvous.PortRange
	// address belongs to the interface that the user names. mtu is the size of
	// the largest packet of a pod there. Both are zero if the user names none.
	address netip.Addr
	mtu     int
	// fast reports whether the host has a Switch, which makes connections of
	// pods.
	fast bool
}

// use selects the interface with the given name. It does nothing if the name is
// empty, or if all nodes are on one host and use the loopback.
func (d *dataNetwork) use(name string) error {
	if name == "" || d.address.IsLoopback() {
		return nil
	}
	link, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("find interface %s: %w; see with `ip -brief address` which there are", name, err)
	}
	addresses, err := link.Addrs()
	if err != nil {
		return fmt.Errorf("list the addresses of interface %s: %w", name, err)
	}
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if err != nil || prefix.Addr().IsLinkLocalUnicast() || prefix.Addr().IsLoopback() {
			continue
		}
		// Ask for a neighbour's address: the route to this host's own address is
		// the loopback.
		if d.mtu, err = overlay.MTU([]netip.Addr{prefix.Addr().Next()}); err != nil {
			return fmt.Errorf("use interface %s: %w", name, err)
		}
		d.address = prefix.Addr()
		return nil
	}
	return fmt.Errorf("use interface %s: it has no address that other nodes could reach", name)
}

// sockets holds a host's sockets for the network between the nodes: one per queue
// for packets, and one for streams from nodes that no packet reaches. This
// process only holds them.
type sockets struct {
	packets []*os.File
	streams *os.File
	// switches accept connections for pods. It is empty if the host has no
	// Switch.
	switches []*os.File
	ports    hostPorts
}

// reachesItself returns this host's address for its own sockets.
func (d dataNetwork) reachesItself() netip.Addr {
	if d.address.IsValid() {
		return d.address
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// hostPorts lists the ports of the sockets on this host.
type hostPorts struct {
	Packets  []uint16
	Streams  uint16
	Switches []uint16
}

// open creates the sockets. Their address family is that of the other nodes'
// addresses.
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
	if s.streams, err = hold(listener); err != nil || !d.fast {
		return s, err
	}
	return s, s.openSwitches(bind, d.ports)
}

// openSwitches creates the listeners of a Switch.
func (s *sockets) openSwitches(bind netip.Addr, ports rendezvous.PortRange) error {
	for range numSwitchPorts {
		listener, err := takePort("TCP", ports, func(port uint16) (*net.TCPListener, error) {
			return fastpath.Listen(netip.AddrPortFrom(bind, port))
		})
		if err != nil {
			return fmt.Errorf("listen for connections of pods: %w", err)
		}
		s.ports.Switches = append(s.ports.Switches, uint16(listener.Addr().(*net.TCPAddr).Port))
		held, err := hold(listener)
		if err != nil {
			return err
		}
		s.switches = append(s.switches, held)
	}
	return nil
}

// hold duplicates a descriptor that another process serves, outside Go's poller.
// The poller would wake this process for each packet.
func hold(original interface {
	syscall.Conn
	io.Closer
}) (*os.File, error) {
	defer original.Close()
	return overlay.Hold(original)
}

// files returns the descriptors for the process that serves the sockets.
func (s sockets) files() []*os.File { return append(slices.Clone(s.packets), s.streams) }

func (s sockets) close() {
	for _, file := range append(s.files(), s.switches...) {
		if file != nil {
			file.Close()
		}
	}
}

// at returns node with the addresses of its sockets on host.
func (p hostPorts) at(host netip.Addr, node overlay.Node) overlay.Node {
	node.Stream = netip.AddrPortFrom(host, p.Streams)
	node.Endpoints = nil
	for _, port := range p.Packets {
		node.Endpoints = append(node.Endpoints, netip.AddrPortFrom(host, port))
	}
	return node
}

// switchesAt returns the listening addresses of a host's Switch.
func (p hostPorts) switchesAt(host netip.Addr) []netip.AddrPort {
	var all []netip.AddrPort
	for _, port := range p.Switches {
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

// listenUDP and listenTCP listen on a free port of a range.
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

// takePort tries all ports of a range, from a random one, until one is free.
func takePort[T any](protocol string, ports rendezvous.PortRange, listen func(uint16) (T, error)) (none T, err error) {
	size := int(ports.Last) - int(ports.First) + 1
	start := rand.IntN(size)
	for i := range size {
		taken, err := listen(ports.First + uint16((start+i)%size))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return taken, err
		}
	}
	// A range may be too small even for one node, or for several nodes on one
	// host.
	return none, fmt.Errorf("all %s ports in %s are taken, %d in all, of which each node needs up to %d; choose more or others with --port-range",
		protocol, ports, size, max(maxQueues, headPorts+numSwitchPorts))
}
