package vxlan

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"berth.dev/berth/internal/site/siteconf"
)

// State is everything that shall be on this node.
type State struct {
	// Pods is the range of all pods, and Gateway the node's address in it.
	Pods    netip.Prefix
	Gateway netip.Addr
	// IPv6 is where pods have a second address each, if they do.
	IPv6 siteconf.IPv6
	// Host is the address of this node at which tunnels end.
	Host netip.Addr
	// Port is VXLAN's.
	Port uint16
	// Daemons are the users whose processes on this host reach all pods.
	Daemons []uint32
	// Flows is how many connections a pod may have that this host tracks, 0 for any number.
	Flows int
	// Names: pods may ask a name server at the gateway.
	Names bool
	// Networks are those of the users who have pods here.
	Networks []Network
	// Outside are pods on other nodes that this host reaches, whoever's they are.
	Outside []Peer
	// Hosts is the network of the hosts, and Beyond what pods reach through
	// gateways.
	Hosts  netip.Prefix
	Beyond []siteconf.OutsideNetwork
	// Forwards: this host is a gateway, to Interfaces beside the one with its
	// address.
	Forwards   bool
	Interfaces []string
	// As are the addresses that pods get from this gateway, where it is not its own.
	As siteconf.AddressRange
	// Gateways are those of the site, and those that pods here have, whether they live or not.
	Gateways []netip.Addr
	// Routed is how pods are reached without tunnels, or nil.
	Routed *Routed
	// uplink is the name of the interface with the address Host. Apply fills it in.
	uplink string
	// opened6: this host forwards IPv6, and would not without pods. Apply fills it in.
	opened6 bool
	// distant are the hosts that are not on the link of this one, and reached by a tunnel
	// of its own: gateways from nodes, nodes from gateways. Apply fills it in.
	distant []netip.Addr
}

// active says whether there is anything to do: a gateway forwards for pods, and
// where there are none it is a host like others.
func (s State) active() bool {
	return len(s.Networks) > 0 || s.forwards()
}

func (s State) forwards() bool {
	return s.Forwards && (len(s.Networks) > 0 || len(s.Outside) > 0)
}

// Network is that of a user, or of several who share one.
type Network struct {
	VNI uint32
	// Owners are those who have pods here.
	Owners []Owner
	Local  []Pod
	// Peers are the pods on other nodes.
	Peers []Peer
}

// Owner is a user, with what his pods reach and who reaches them.
type Owner struct {
	UID             uint32
	Egress, Ingress []siteconf.Rule
}

// Own adds an owner unless it is there.
func (n *Network) Own(o Owner) {
	if !slices.ContainsFunc(n.Owners, func(there Owner) bool { return there.UID == o.UID }) {
		n.Owners = append(n.Owners, o)
	}
}

// Pod is one on this node.
type Pod struct {
	Address netip.Addr
	Owner   uint32
	// Namespace is a file that is its network namespace.
	Namespace string
	// Gateway is where the pod reaches the outside, none if there is nobody.
	Gateway netip.Addr
}

// Peer is a pod on another node, whose address is Via.
type Peer struct {
	Address, Via netip.Addr
}

// ownerPrefix begins the names of all our interfaces, which have 15 bytes at
// most.
const ownerPrefix = "berth"

// gatewayTunnel is that between nodes and gateways on other links. Networks of users
// have numbers from 1 on.
const gatewayTunnel = 0

func bridgeName(vni uint32) string { return fmt.Sprintf("%sb%06x", ownerPrefix, vni) }
func tunnelName(vni uint32) string { return fmt.Sprintf("%st%06x", ownerPrefix, vni) }
func podName(address netip.Addr) string {
	return fmt.Sprintf("%sp%08x", ownerPrefix, siteconf.Number(address))
}

// podLink is what a pod sees.
const podLink = "eth0"

// bridgeMAC is that of all bridges: no frame of theirs leaves the node.
func bridgeMAC() net.HardwareAddr { return net.HardwareAddr{0x02, 0x62, 'b', 'e', 'r', 't'} }

// Tunnels are sent from privileged ports, and from no others are they taken:
// otherwise a process of any user on a host, or in a pod, could write packets
// into the network of another, as VXLAN is nothing but UDP.
const (
	firstSource = 512
	// LastSource has to be root's alone, on all hosts.
	LastSource = 1023
)

// overhead of VXLAN over IPv4, in bytes: IP, UDP, VXLAN, Ethernet.
const overhead = 20 + 8 + 8 + 14

// Sort puts everything into an order that is always the same, so that equal
// states have equal rules, and are seen to be equal.
func (s *State) Sort() {
	slices.SortFunc(s.Outside, func(a, b Peer) int { return a.Address.Compare(b.Address) })
	slices.SortFunc(s.Gateways, netip.Addr.Compare)
	slices.SortFunc(s.Networks, func(a, b Network) int { return cmp.Compare(a.VNI, b.VNI) })
	for i := range s.Networks {
		slices.SortFunc(s.Networks[i].Owners, func(a, b Owner) int { return cmp.Compare(a.UID, b.UID) })
		slices.SortFunc(s.Networks[i].Local, func(a, b Pod) int { return a.Address.Compare(b.Address) })
		slices.SortFunc(s.Networks[i].Peers, func(a, b Peer) int { return a.Address.Compare(b.Address) })
	}
}
