package vxlan

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sort"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
)

// Routed are the subnets of nodes. Then pods have no link with each other, not even on
// one node: each has one with its host alone, which leads packets by their addresses.
// Who belongs together is said by sets of addresses, one for each network, and looked
// at on both nodes.
type Routed struct {
	// Own is that of this node, none where it has no pods.
	Own netip.Prefix
	// All are those of all nodes, in the order of their addresses.
	All []netip.Prefix
}

// NewRouted returns what a node knows.
func NewRouted(node string, subnets map[string]netip.Prefix) *Routed {
	r := &Routed{Own: subnets[node]}
	for _, subnet := range subnets {
		r.All = append(r.All, subnet)
	}
	slices.SortFunc(r.All, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return r
}

// of is the subnet of a pod; the pod alone if it is in none, as one is that began before
// the site had subnets, and where there are none.
func (r *Routed) of(pod netip.Addr) netip.Prefix {
	if r != nil {
		after := sort.Search(len(r.All), func(i int) bool { return pod.Less(r.All[i].Addr()) })
		if after > 0 && r.All[after-1].Contains(pod) {
			return r.All[after-1]
		}
	}
	return netip.PrefixFrom(pod, 32)
}

// tell says, once, of which nodes the site's routers have to know the way to pods.
func (k *Kernel) tell(s State, subnet netip.Prefix, node netip.Addr) {
	if s.Routed == nil || k.told[subnet] || k.Log == nil {
		return
	}
	if k.told == nil {
		k.told = map[netip.Prefix]bool{}
	}
	k.told[subnet] = true
	led := []any{"subnet", subnet, "node", node}
	if s.dual() {
		led = append(led, "ipv6", s.IPv6.SecondOf(subnet).Masked())
	}
	k.Log.Warn("a node with pods is on no link of this host: the site's routers have to lead its subnet to it", led...)
}

// connectedOtherwise: a pair that was made for a bridge is none for routes, and the
// other way round. Only that for routes has no ARP.
func connectedOtherwise(outer, bridge netlink.Link) bool {
	return withoutARP(outer) == (bridge != nil)
}

func withoutARP(link netlink.Link) bool { return link.Attrs().RawFlags&unix.IFF_NOARP != 0 }

// lead connects a pod's interface to this host alone. There is no ARP on it: each side
// knows the other, so that nobody can claim to be somebody else.
func (s State) lead(pod Pod, outer netlink.Link) error {
	name := outer.Attrs().Name
	for file, value := range map[string]string{"forwarding": "1", "accept_redirects": "0"} {
		if err := setting("ipv4/conf/"+name+"/"+file, value); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("configure interface %s: %w", name, err)
		}
	}
	var problems []error
	// Not where it is so: even to set the same MAC has the kernel forget all neighbours of
	// the interface, permanent ones too (NETDEV_CHANGEADDR), and until they are set again what goes
	// to the pod has a wrong MAC.
	if !bytes.Equal(outer.Attrs().HardwareAddr, bridgeMAC()) {
		problems = append(problems, netlink.LinkSetHardwareAddr(outer, bridgeMAC()))
	}
	if !withoutARP(outer) {
		problems = append(problems, netlink.LinkSetARPOff(outer))
	}
	if err := errors.Join(append(problems, netlink.LinkSetUp(outer))...); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	if s.dual() {
		if err := s.speakIPv6(name); err != nil {
			return fmt.Errorf("configure interface %s: %w", name, err)
		}
	}
	for _, address := range s.addresses(pod.Address) {
		if err := netlink.NeighSet(neighbour(outer, address, siteconf.MAC(pod.Address))); err != nil {
			return fmt.Errorf("set neighbour %s: %w", address, err)
		}
	}
	return nil
}

// configureRouted is the inside of such a pod. Its address is one in the range of all
// pods, as with tunnels: programs that look which peers are near (MPI) see no difference.
func configureRouted(inside *netlink.Handle, link netlink.Link, s State, address *netlink.Addr) error {
	address.Flags = unix.IFA_F_NOPREFIXROUTE
	if err := errors.Join(inside.LinkSetUp(link), inside.AddrReplace(link, address)); err != nil {
		return fmt.Errorf("configure the interface of the pod: %w", err)
	}
	if err := knowHost(inside, link, s); err != nil {
		return err
	}
	all := &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}
	if err := inside.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all, Gw: s.Gateway.AsSlice(), Flags: int(netlink.FLAG_ONLINK)}); err != nil {
		return fmt.Errorf("set the default route of the pod: %w", err)
	}
	return nil
}

// knowHost has a pod know the MAC address of its host without asking.
func knowHost(inside *netlink.Handle, link netlink.Link, s State) error {
	if err := inside.NeighSet(neighbour(link, s.Gateway, bridgeMAC())); err != nil {
		return fmt.Errorf("set the neighbour of the pod: %w", err)
	}
	return nil
}

func neighbour(link netlink.Link, address netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: familyOf(address), State: unix.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac}
}

// routed are the sets and chains by which networks are apart. What comes from a pod has
// its own addresses, or is dropped, IPv6 with it where pods have none; so the source of what
// arrives from another node is true as well.
func (s State) routed(r *writer) {
	s.podSets(r)
	for _, n := range s.Networks {
		var members []netip.Addr
		for _, pod := range n.Local {
			members = append(members, pod.Address)
		}
		for _, peer := range n.Peers {
			members = append(members, peer.Address)
		}
		kinds := s.kinds()
		for _, kind := range kinds {
			var of []string
			for _, member := range members {
				of = append(of, kind.of(member).String())
			}
			r.set(memberName(n)+kind.suffix, kind.header+" saddr", of)
		}
		r.block("chain to_"+memberName(n), func() {
			for _, kind := range kinds {
				r.line("%s daddr @%s%s accept", kind.header, memberName(n), kind.suffix)
			}
		})
		r.block("chain from_"+memberName(n), func() {
			for _, kind := range kinds {
				r.line("iifname { %s } %s saddr @%s%s accept", s.nodeLinks(), kind.header, memberName(n), kind.suffix)
			}
		})
	}
	r.block("chain prerouting", func() {
		r.line("type filter hook prerouting priority -300; policy accept;")
		r.line("iifname != %q accept", s.podLinks())
		for _, kind := range s.kinds() {
			r.line("iifname . ether saddr . %s saddr @pods%s accept", kind.header, kind.suffix)
		}
		r.line("drop")
	})
}

// nodeLinks are the interfaces by which packets of pods come from other nodes: that of
// the hosts, and the tunnel to gateways on other links, which may have pods as well.
func (s State) nodeLinks() string {
	links := []string{fmt.Sprintf("%q", s.uplink)}
	if len(s.distant) > 0 {
		links = append(links, fmt.Sprintf("%q", tunnelName(gatewayTunnel)))
	}
	return join(links)
}

func memberName(n Network) string { return fmt.Sprintf("network_%06x", n.VNI) }

// jumpNetwork goes to what the pod with the address on that side has in common with others.
func (s State) jumpNetwork(r *writer, side, direction string) {
	if s.Routed == nil {
		return
	}
	s.byPod(r, side, func(n Network, _ Pod) string { return direction + "_" + memberName(n) })
}
