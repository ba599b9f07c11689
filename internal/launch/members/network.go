package members

import (
	"fmt"
	"net/netip"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/network/overlay"
)

// network is this node's end of the network between the nodes. It is empty on a single
// node.
type network struct {
	several bool
	data    hostnet.Network
	// carrier selects the protocol that carries packets between nodes.
	carrier overlay.Carrier
	// sockets carry packets between the nodes. They outlive the process that
	// serves them.
	sockets hostnet.Sockets
	places  *hostnet.Places
	// bound is the address of sockets on a node that is not the head.
	bound netip.Addr
}

func newNetwork(ports rendezvous.PortRange, carrier string) network {
	return network{several: true, data: hostnet.Network{Ports: ports}, carrier: overlay.Carrier(carrier)}
}

// UseInterface selects the interface for the network between the nodes. There is
// none on a single node.
func (n *network) UseInterface(name string) error {
	if !n.several {
		return nil
	}
	return n.data.Use(name)
}

// HasSwitch reports whether this host has a Switch for connections to other nodes.
func (n *network) HasSwitch() bool { return n.data.Fast }

// Places returns the network between the nodes, or nil on a single node and before the
// nodes know each other.
func (n *network) Places() *hostnet.Places { return n.places }

// Sockets returns the sockets between the nodes. There are none on a single node.
func (n *network) Sockets() hostnet.Sockets { return n.sockets }

// lay sets up the head's end. The other nodes have the places after the first. The places
// after theirs are empty.
func (n *network) lay(key []byte, places []cluster.Member, others []*member) {
	// The head's pods reach each other through Services by its Switch, too.
	own := hostnet.Change{Name: places[0].Name, Host: n.data.ReachesItself(), Ports: hostnet.Ports{Switches: n.sockets.Ports.Switches}}
	of := hostnet.View{Key: key, Carrier: n.carrier, Nodes: []hostnet.Change{own}}
	for i, w := range others {
		of.Nodes = append(of.Nodes, hostnet.Change{Index: i + 1, Name: places[i+1].Name, Host: w.address(), Ports: w.hello.Ports})
	}
	n.places = hostnet.NewPlaces(of, prefixesOf(places))
}

// prefixesOf returns the prefixes of each place.
func prefixesOf(places []cluster.Member) (all [][]netip.Prefix) {
	for _, place := range places {
		all = append(all, place.Prefixes)
	}
	return all
}

// KeepKey makes the network between the nodes have the key that it had under the previous head.
// It must be called before SendPlans.
func (m *Members) KeepKey(key []byte) { m.keptKey = key }

// addressFor returns the head's address for another node.
func (n *network) addressFor(peer *rendezvous.Peer) netip.Addr {
	if n.data.Address.IsValid() {
		return n.data.Address
	}
	// The node has already connected to the head at this address.
	return hostnet.HostOf(peer.LocalAddr())
}

// checkSeat returns an error if a node that takes a seat could not reach all others, or they
// could not reach it.
func (n *network) checkSeat(change hostnet.Change, peer *rendezvous.Peer) error {
	if !change.Taken() {
		return fmt.Errorf("node %s offers no port for the packets of pods", change.Name)
	}
	if head := n.addressFor(peer); change.Host.Unmap().Is4() != head.Unmap().Is4() {
		return fmt.Errorf("node %s has the address %s and the head %s: all nodes need IPv4 addresses, or all IPv6; choose the network with --interface", change.Name, change.Host, head)
	}
	return n.places.Check(change)
}

// endOf returns the end of another node, with all places as they are now.
func (n *network) endOf(index int, peer *rendezvous.Peer) hostnet.View {
	end := n.places.View(index)
	end.Nodes[0].Host, end.Nodes[0].Ports = n.addressFor(peer), n.sockets.Ports
	return end
}
