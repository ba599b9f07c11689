package members

import (
	"net/netip"
	"slices"

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
	overlay hostnet.Overlay
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

// Overlay returns the network between the nodes, or nil on a single node.
func (n *network) Overlay() *hostnet.Overlay {
	if !n.several {
		return nil
	}
	return &n.overlay
}

// Sockets returns the sockets between the nodes. There are none on a single node.
func (n *network) Sockets() hostnet.Sockets { return n.sockets }

// lay sets up the head's end. It returns the ends of the other nodes, which have
// the addresses in planned after the first.
func (n *network) lay(key []byte, planned []cluster.Member, others []*member) []hostnet.Overlay {
	nodes := make([]overlay.Node, len(planned))
	switches := make([][]netip.AddrPort, len(planned))
	for i, member := range planned {
		nodes[i] = overlay.Node{Name: member.Name, Prefixes: member.Prefixes}
		if i > 0 {
			w := others[i-1]
			nodes[i], switches[i] = w.hello.Ports.At(w.address(), nodes[i]), w.hello.Ports.SwitchesAt(w.address())
		}
	}
	// The head's pods reach each other through Services by its Switch, too.
	switches[0] = n.sockets.Ports.SwitchesAt(n.data.ReachesItself())
	n.overlay = hostnet.Overlay{Key: key, Carrier: n.carrier, Nodes: nodes, Switches: switches}
	var ends []hostnet.Overlay
	for i, w := range others {
		own := n.data.Address
		if !own.IsValid() {
			// Each node has already connected to the head at this address.
			own = hostnet.HostOf(w.peer.LocalAddr())
		}
		theirs := slices.Clone(nodes)
		theirs[0] = n.sockets.Ports.At(own, theirs[0])
		theirSwitches := slices.Clone(switches)
		theirSwitches[0] = n.sockets.Ports.SwitchesAt(own)
		ends = append(ends, hostnet.Overlay{Key: key, Carrier: n.carrier, Nodes: theirs, Switches: theirSwitches, Self: i + 1})
	}
	return ends
}
