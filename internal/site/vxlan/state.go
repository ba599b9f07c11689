package vxlan

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"berth.dev/berth/internal/site/siteconf"
)

// State describes all networks of this node.
type State struct {
	// Pods is the range of all pods, and Gateway the node's address in it.
	Pods    netip.Prefix
	Gateway netip.Addr
	// IPv6 is the range of the second addresses of pods, if they have any.
	IPv6 siteconf.IPv6
	// Host is the address of this node where tunnels end.
	Host netip.Addr
	// Port is the UDP port of VXLAN.
	Port uint16
	// Daemons holds the IDs of the users whose processes on this host reach all pods.
	Daemons []uint32
	// Flows bounds the connections of a pod that this host tracks; 0 means no bound.
	Flows int
	// Names permits pods to ask a name server at Gateway.
	Names bool
	// Networks holds the networks with a pod on this node.
	Networks []Network
	// Outside holds pods of any user on other nodes that this host reaches.
	Outside []Peer
	// Hosts is the network of the hosts, and OutsideNetworks holds the networks that pods
	// reach through gateways.
	Hosts           netip.Prefix
	OutsideNetworks []siteconf.OutsideNetwork
	// Forwards reports whether this host is a gateway. It then forwards to Interfaces, in
	// addition to the interface with its address.
	Forwards   bool
	Interfaces []string
	// As holds the source addresses that pods get from this gateway, if not its own address.
	As siteconf.AddressRange
	// Gateways holds the gateways of the site and of the pods here, alive or not.
	Gateways []netip.Addr
	// Routed describes how to reach pods without tunnels. It is nil if there are tunnels.
	Routed *Routed
	// uplink is the name of the interface with the address Host. Apply sets it.
	uplink string
	// opened6 reports whether this host forwards IPv6 only because of pods. Apply sets it.
	opened6 bool
	// distant holds the hosts on other links, which have their own tunnel: gateways if this is
	// a node, nodes if this is a gateway. Apply sets it.
	distant []netip.Addr
}

// active reports whether the node needs any configuration: it has pods, or is a gateway that
// pods elsewhere use.
func (s State) active() bool {
	return len(s.Networks) > 0 || s.forwards()
}

// forwards reports whether this host is a gateway and there are pods that may use it.
func (s State) forwards() bool {
	return s.Forwards && (len(s.Networks) > 0 || len(s.Outside) > 0)
}

// Network is the network of a user, or of several users who share one.
type Network struct {
	VNI uint32
	// Owners holds the users with pods here.
	Owners []Owner
	Local  []Pod
	// Peers holds the pods on other nodes.
	Peers []Peer
}

// Owner is a user, with the rules for connections from and to the pods.
type Owner struct {
	UID             uint32
	Egress, Ingress []siteconf.Rule
}

// Own adds an owner, unless the network has it.
func (n *Network) Own(o Owner) {
	if !slices.ContainsFunc(n.Owners, func(there Owner) bool { return there.UID == o.UID }) {
		n.Owners = append(n.Owners, o)
	}
}

// Pod is a pod on this node.
type Pod struct {
	Address netip.Addr
	Owner   uint32
	// Namespace is the path of the file that holds the pod's network namespace.
	Namespace string
	// Gateway forwards between the pod and the outside. It is invalid if there is none.
	Gateway netip.Addr
	// Unmarked is set if MarkStepd failed, so that users of the pod may be able to send the mark
	// of slurmstepd.
	Unmarked bool
}

// Peer is a pod on another node. Via is the address of that node.
type Peer struct {
	Address, Via netip.Addr
}

// ownerPrefix begins the names of all our interfaces. Names have at most 15 bytes.
const ownerPrefix = "berth"

// gatewayTunnel is the number of the tunnel between nodes and gateways on other
// links. Networks of users have numbers from 1.
const gatewayTunnel = 0

func bridgeName(vni uint32) string { return fmt.Sprintf("%sb%06x", ownerPrefix, vni) }
func tunnelName(vni uint32) string { return fmt.Sprintf("%st%06x", ownerPrefix, vni) }
func podName(address netip.Addr) string {
	return fmt.Sprintf("%sp%08x", ownerPrefix, siteconf.Number(address))
}

// podLink is the name of the interface in a pod.
const podLink = "eth0"

// bridgeMAC returns the MAC address of all bridges. They can share it because none of
// their frames leaves the node.
func bridgeMAC() net.HardwareAddr { return net.HardwareAddr{0x02, 0x62, 'b', 'e', 'r', 't'} }

// Tunnels send from privileged ports, and accept packets only from such ports. VXLAN
// is plain UDP: otherwise a process of any user on a host, or in a pod, could inject
// packets into another user's network.
const (
	firstSource = 512
	// LastSource must be reserved for root on all hosts.
	LastSource = 1023
)

// overhead is the size of the headers that VXLAN over IPv4 adds, in bytes: IP, UDP,
// VXLAN, Ethernet.
const overhead = 20 + 8 + 8 + 14

// Sort orders pods, gateways, networks and their owners, so that equal states compare
// equal and have equal rules.
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
