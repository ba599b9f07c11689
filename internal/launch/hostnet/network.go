package hostnet

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

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/network/fastpath"
	"berth.dev/berth/internal/network/overlay"
)

// numSwitchPorts is the number of listening ports of a Switch. A host has 28,000
// local ports for connections to each of them (net.ipv4.ip_local_port_range), and
// a port stays in TIME_WAIT for a minute after its connection.
const numSwitchPorts = 2

// headPorts counts the TCP ports of the head without its Switch: for the
// rendezvous, for streams of packets, and for archives.
const headPorts = 3

// maxQueues bounds the number of sockets for packets of a node, and so the cores
// that carry packets between nodes.
const maxQueues = 4

// Network is the host's side of the network between the nodes.
type Network struct {
	Ports rendezvous.PortRange
	// Address belongs to the interface that the user names, or is the loopback if
	// all nodes are on one host. MTU is the size in bytes of the largest packet of a
	// pod there. Otherwise both are zero.
	Address netip.Addr
	MTU     int
	// Fast reports whether the host has a Switch, which makes connections of
	// pods.
	Fast bool
}

// Use selects the interface with the given name. It does nothing if the name is
// empty, or if all nodes are on one host and use the loopback.
func (d *Network) Use(name string) error {
	if name == "" || d.Address.IsLoopback() {
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
		if d.MTU, err = overlay.MTU([]netip.Addr{prefix.Addr().Next()}); err != nil {
			return fmt.Errorf("use interface %s: %w", name, err)
		}
		d.Address = prefix.Addr()
		return nil
	}
	return fmt.Errorf("use interface %s: it has no address that other nodes could reach", name)
}

// Sockets holds a host's sockets for the network between the nodes: one per queue
// for packets, and one for streams from nodes that no packet reaches. This
// process only holds them.
type Sockets struct {
	Packets []*os.File
	Streams *os.File
	// Switches accept connections for pods. It is empty if the host has no
	// Switch.
	Switches []*os.File
	Ports    Ports
}

// ReachesItself returns this host's address for its connections to its own sockets.
func (d Network) ReachesItself() netip.Addr {
	if d.Address.IsValid() {
		return d.Address
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1})
}

// Overlay is one node's configuration of the network between the nodes.
type Overlay struct {
	Key     []byte
	Carrier overlay.Carrier
	Nodes   []overlay.Node
	// Switches holds the listening addresses of each node's Switch.
	Switches [][]netip.AddrPort
	Self     int
}

// Ports lists the ports of the sockets on this host.
type Ports struct {
	Packets  []uint16 `json:",omitempty"`
	Streams  uint16   `json:",omitempty"`
	Switches []uint16 `json:",omitempty"`
}

// Open creates the sockets, with one socket for packets per CPU up to maxQueues. If
// d has no Address, they are bound to all addresses, with IPv6 if another node has
// an IPv6 address. After an error, s holds the sockets created so far.
func (d Network) Open(cpus int, others ...netip.Addr) (s Sockets, err error) {
	bind := d.Address
	if !bind.IsValid() {
		bind = netip.IPv4Unspecified()
		for _, other := range others {
			if other.Is6() {
				bind = netip.IPv6Unspecified()
			}
		}
	}
	for range max(1, min(cpus, maxQueues)) {
		conn, err := listenUDP(bind, d.Ports)
		if err != nil {
			return s, fmt.Errorf("open a socket between the nodes: %w", err)
		}
		s.Ports.Packets = append(s.Ports.Packets, uint16(conn.LocalAddr().(*net.UDPAddr).Port))
		held, err := Hold(conn)
		if err != nil {
			return s, err
		}
		s.Packets = append(s.Packets, held)
	}
	listener, err := ListenTCP(bind, d.Ports)
	if err != nil {
		return s, fmt.Errorf("listen for other nodes: %w", err)
	}
	s.Ports.Streams = uint16(listener.Addr().(*net.TCPAddr).Port)
	if s.Streams, err = Hold(listener); err != nil || !d.Fast {
		return s, err
	}
	return s, s.openSwitches(bind, d.Ports)
}

// openSwitches creates the listeners of a Switch.
func (s *Sockets) openSwitches(bind netip.Addr, ports rendezvous.PortRange) error {
	for range numSwitchPorts {
		listener, err := takePort("TCP", ports, func(port uint16) (*net.TCPListener, error) {
			return fastpath.Listen(netip.AddrPortFrom(bind, port))
		})
		if err != nil {
			return fmt.Errorf("listen for connections of pods: %w", err)
		}
		s.Ports.Switches = append(s.Ports.Switches, uint16(listener.Addr().(*net.TCPAddr).Port))
		held, err := Hold(listener)
		if err != nil {
			return err
		}
		s.Switches = append(s.Switches, held)
	}
	return nil
}

// Hold duplicates the descriptor of a socket that another process serves, and closes
// original. The duplicate is not in Go's poller, which would wake this process for
// each packet.
func Hold(original interface {
	syscall.Conn
	io.Closer
}) (*os.File, error) {
	defer original.Close()
	return overlay.Hold(original)
}

// files returns the descriptors for the process that serves the sockets.
func (s Sockets) files() []*os.File { return append(slices.Clone(s.Packets), s.Streams) }

// Close closes all sockets.
func (s Sockets) Close() {
	for _, file := range append(s.files(), s.Switches...) {
		if file != nil {
			file.Close()
		}
	}
}

// At returns node with the addresses of its sockets on host.
func (p Ports) At(host netip.Addr, node overlay.Node) overlay.Node {
	node.Stream = netip.AddrPortFrom(host, p.Streams)
	node.Endpoints = nil
	for _, port := range p.Packets {
		node.Endpoints = append(node.Endpoints, netip.AddrPortFrom(host, port))
	}
	return node
}

// SwitchesAt returns the listening addresses of a host's Switch.
func (p Ports) SwitchesAt(host netip.Addr) []netip.AddrPort {
	var all []netip.AddrPort
	for _, port := range p.Switches {
		all = append(all, netip.AddrPortFrom(host, port))
	}
	return all
}

// HostOf returns the IP address in a TCP address, and the zero Addr for any other
// address.
func HostOf(address net.Addr) netip.Addr {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// listenUDP opens a UDP socket on a free port of a range.
func listenUDP(bind netip.Addr, ports rendezvous.PortRange) (*net.UDPConn, error) {
	return takePort("UDP", ports, func(port uint16) (*net.UDPConn, error) {
		return net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind, port)))
	})
}

// ListenTCP listens on a free port of a range.
func ListenTCP(bind netip.Addr, ports rendezvous.PortRange) (*net.TCPListener, error) {
	return takePort("TCP", ports, func(port uint16) (*net.TCPListener, error) {
		return net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(bind, port)))
	})
}

// takePort calls listen with the ports of a range, from a random one on, until one is
// not in use. It returns any other error of listen.
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
	return none, fmt.Errorf("all %s ports in %s are taken (%d), and each node needs up to %d; choose more or others with --port-range",
		protocol, ports, size, max(maxQueues, headPorts+numSwitchPorts))
}

// WantsFastPath reports whether this host should have a Switch. The error is the
// reason why it cannot.
func WantsFastPath(asked string) (bool, error) {
	if asked == cluster.FastPathOff {
		return false, nil
	}
	if err := fastpath.Check(); err != nil {
		return false, err
	}
	return true, nil
}
