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

// Routed holds the subnets of nodes. With it, pods have no link with each other, even
// on one node: each pod has a link only with its host, which routes packets. Sets of
// addresses, one for each network, define which pods may communicate. Both nodes
// check them.
type Routed struct {
	// Own is the subnet of this node. It is invalid if the node has no pods.
	Own netip.Prefix
	// All holds the subnets of all nodes, ordered by address.
	All []netip.Prefix
}

// NewRouted returns the subnets as a node sees them.
func NewRouted(node string, subnets map[string]netip.Prefix) *Routed {
	r := &Routed{Own: subnets[node]}
	for _, subnet := range subnets {
		r.All = append(r.All, subnet)
	}
	slices.SortFunc(r.All, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return r
}

// of returns the subnet of a pod. It returns only the pod's address if r is nil or no
// subnet contains it: the pod may have started before the site had subnets.
func (r *Routed) of(pod netip.Addr) netip.Prefix {
	if r != nil {
		after := sort.Search(len(r.All), func(i int) bool { return pod.Less(r.All[i].Addr()) })
		if after > 0 && r.All[after-1].Contains(pod) {
			return r.All[after-1]
		}
	}
	return netip.PrefixFrom(pod, 32)
}

// warnRouted logs, once per subnet, that the site's routers have to route it to its node.
func (k *Kernel) warnRouted(s State, subnet netip.Prefix, node netip.Addr) {
	if s.Routed == nil || k.logged[subnet] || k.Log == nil {
		return
	}
	if k.logged == nil {
		k.logged = map[netip.Prefix]bool{}
	}
	k.logged[subnet] = true
	led := []any{"subnet", subnet, "node", node}
	if s.dual() {
		led = append(led, "ipv6", s.IPv6.SecondOf(subnet).Masked())
	}
	k.Log.Warn("a node with pods is on no link of this host: the site's routers have to lead its subnet to it", led...)
}

// connectedOtherwise reports whether an interface pair was made for the other mode:
// for a bridge where pods are routed, or the reverse. Only routed pairs have no ARP.
func connectedOtherwise(outer, bridge netlink.Link) bool {
	return withoutARP(outer) == (bridge != nil)
}

func withoutARP(link netlink.Link) bool { return link.Attrs().RawFlags&unix.IFF_NOARP != 0 }

// lead connects a pod's interface only to this host. The link has no ARP: each side
// has a permanent entry for the other, so nobody can pretend to be somebody else.
func (s State) lead(pod Pod, outer netlink.Link) error {
	name := outer.Attrs().Name
	for file, value := range map[string]string{"forwarding": "1", "accept_redirects": "0"} {
		if err := setting("ipv4/conf/"+name+"/"+file, value); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("configure interface %s: %w", name, err)
		}
	}
	var problems []error
	// Change it only if it differs. Setting even the same MAC makes the kernel drop
	// all neighbours of the interface, including permanent ones (NETDEV_CHANGEADDR).
	// Until they are set again, packets to the pod have a wrong MAC.
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
		if err := s.setIPv6(name); err != nil {
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

// configureRouted configures the interface inside a routed pod. Its address has the prefix
// length of the range of all pods, as with tunnels, so programs that look for near
// peers (MPI) see no difference.
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

// knowHost gives a pod a permanent neighbour entry for its host.
func knowHost(inside *netlink.Handle, link netlink.Link, s State) error {
	if err := inside.NeighSet(neighbour(link, s.Gateway, bridgeMAC())); err != nil {
		return fmt.Errorf("set the neighbour of the pod: %w", err)
	}
	return nil
}

func neighbour(link netlink.Link, address netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: familyOf(address), State: unix.NUD_PERMANENT, IP: address.AsSlice(), HardwareAddr: mac}
}

// routed writes the sets and chains that separate networks. A packet from a pod is
// dropped unless it has the pod's own address; without IPv6 for pods, all its IPv6
// packets are. So the source of a packet that arrives from another node is also
// genuine.
func (r *ruleset) routed() {
	r.podSets()
	for _, n := range r.Networks {
		var members []netip.Addr
		for _, pod := range n.Local {
			members = append(members, pod.Address)
		}
		for _, peer := range n.Peers {
			members = append(members, peer.Address)
		}
		kinds := r.kinds()
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
				r.line("iifname { %s } %s saddr @%s%s accept", r.nodeLinks(), kind.header, memberName(n), kind.suffix)
			}
		})
	}
	r.block("chain prerouting", func() {
		r.line("type filter hook prerouting priority -300; policy accept;")
		r.line("iifname != %q accept", r.podLinks())
		for _, kind := range r.kinds() {
			r.line("iifname . ether saddr . %s saddr @pods%s accept", kind.header, kind.suffix)
		}
		r.line("drop")
	})
}

// nodeLinks returns the interfaces that packets of pods on other nodes come from: the
// uplink, and the tunnel to gateways on other links, which may also have pods.
func (r *ruleset) nodeLinks() string {
	links := []string{fmt.Sprintf("%q", r.uplink)}
	if len(r.distant) > 0 {
		links = append(links, fmt.Sprintf("%q", tunnelName(gatewayTunnel)))
	}
	return join(links)
}

func memberName(n Network) string { return fmt.Sprintf("network_%06x", n.VNI) }

// jumpNetwork jumps to the chain of the network of the pod whose address is on that
// side.
func (r *ruleset) jumpNetwork(side, direction string) {
	if r.Routed == nil {
		return
	}
	r.byPod(side, func(n Network, _ Pod) string { return direction + "_" + memberName(n) })
}
