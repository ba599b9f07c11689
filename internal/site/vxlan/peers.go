package vxlan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/site/siteconf"
)

// peers makes three entries for each peer: the bridge port, the node behind the tunnel, and the
// IP address, which the tunnel uses to answer ARP. A tunnel without a bridge needs no first
// entry.
func (k *Kernel) peers(s State, peers []Peer, tunnel netlink.Link, bridged bool) error {
	// Use one socket for all requests. The functions of package netlink open one for each.
	kernel, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("ask for entries of %s: %w", tunnel.Attrs().Name, err)
	}
	defer kernel.Close()
	index := tunnel.Attrs().Index
	via := map[string]net.IP{}
	known := map[string]net.HardwareAddr{}
	for _, peer := range peers {
		mac := siteconf.MAC(peer.Address)
		via[mac.String()] = peer.Via.AsSlice()
		for _, address := range s.answered(peer, bridged) {
			known[address.String()] = mac
		}
	}

	frames, err := kernel.NeighList(index, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("list forwarding entries of %s: %w", tunnel.Attrs().Name, err)
	}
	atPort := map[string]bool{}
	var problems []error
	for _, entry := range frames {
		mac := entry.HardwareAddr.String()
		node, wanted := via[mac]
		switch {
		case wanted && entry.IP.Equal(node):
			delete(via, mac)
		case wanted && entry.Flags&unix.NTF_MASTER != 0:
			atPort[mac] = true
		case entry.HardwareAddr.String() == tunnel.Attrs().HardwareAddr.String():
		default:
			problems = append(problems, kernel.NeighDel(&entry))
		}
	}
	for _, peer := range peers {
		mac := siteconf.MAC(peer.Address)
		if node, missing := via[mac.String()]; missing {
			problems = append(problems, kernel.NeighSet(&netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: unix.NTF_SELF, State: unix.NUD_PERMANENT, IP: node, HardwareAddr: mac}))
		}
		if bridged && !atPort[mac.String()] {
			problems = append(problems, kernel.NeighSet(&netlink.Neigh{LinkIndex: index, Family: unix.AF_BRIDGE, Flags: unix.NTF_MASTER, State: unix.NUD_NOARP, HardwareAddr: mac}))
		}
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("set forwarding entries of %s: %w", tunnel.Attrs().Name, err)
	}
	return neighbours(kernel, tunnel, known, s.families())
}

// answered returns the addresses that a tunnel answers for: the addresses of a pod, or, on the
// tunnel between nodes and gateways, which has no bridge, the next hop addresses of a host.
func (s State) answered(peer Peer, bridged bool) []netip.Addr {
	if s.dual() && !bridged {
		return []netip.Addr{peer.Address, siteconf.NextHop(peer.Address)}
	}
	return s.addresses(peer.Address)
}

// neighbours makes the known neighbours the only permanent ones of an interface.
func neighbours(kernel *netlink.Handle, link netlink.Link, known map[string]net.HardwareAddr, families []int) error {
	var entries []netlink.Neigh
	for _, family := range families {
		of, err := kernel.NeighList(link.Attrs().Index, family)
		if err != nil {
			return fmt.Errorf("list neighbours of %s: %w", link.Attrs().Name, err)
		}
		entries = append(entries, of...)
	}
	var problems []error
	for _, entry := range entries {
		ip := entry.IP.String()
		switch mac, wanted := known[ip]; {
		case wanted && mac.String() == entry.HardwareAddr.String() && entry.State == unix.NUD_PERMANENT:
			delete(known, ip)
		case wanted:
		case entry.State == unix.NUD_PERMANENT:
			problems = append(problems, kernel.NeighDel(&entry))
		}
	}
	for ip, mac := range known {
		address, err := netip.ParseAddr(ip)
		if err != nil {
			return err
		}
		problems = append(problems, kernel.NeighSet(neighbour(link, address, mac)))
	}
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("set neighbours of %s: %w", link.Attrs().Name, err)
	}
	return nil
}
