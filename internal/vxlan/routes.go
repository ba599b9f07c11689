package vxlan

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// protocol marks our routes in the kernel's table, by a number that nobody has
// in /etc/iproute2/rt_protos.
const protocol = 98

// routes are those of the host to pods: of its own through their bridge, of
// others through their nodes, where these are on the same link. Where they are
// not, the site's routers know the way to a gateway.
//
// The way to a pod on another node is not the tunnel, although there is one: its
// packets to this host come from the node without one, and a host that filters
// by the reverse path would drop them.
func (k *Kernel) routes(s State, uplink netlink.Link) error {
	wanted := map[string]netlink.Route{}
	for _, n := range s.Networks {
		bridge, err := netlink.LinkByName(bridgeName(n.VNI))
		if err != nil {
			return fmt.Errorf("look at bridge %s: %w", bridgeName(n.VNI), err)
		}
		for _, pod := range n.Local {
			wanted[single(pod.Address).String()] = netlink.Route{LinkIndex: bridge.Attrs().Index, Scope: unix.RT_SCOPE_LINK, Src: s.Host.AsSlice()}
		}
	}
	own, err := netlink.AddrList(uplink, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", uplink.Attrs().Name, err)
	}
	for _, peer := range s.remote() {
		if slices.ContainsFunc(own, func(a netlink.Addr) bool { return a.Contains(peer.Via.AsSlice()) }) {
			wanted[single(peer.Address).String()] = netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: peer.Via.AsSlice(), Src: s.Host.AsSlice()}
		}
	}
	have, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	if err != nil {
		return fmt.Errorf("list routes: %w", err)
	}
	var problems []error
	for _, route := range have {
		want, ok := wanted[route.Dst.String()]
		if ok && want.LinkIndex == route.LinkIndex && want.Gw.Equal(route.Gw) && want.Src.Equal(route.Src) {
			delete(wanted, route.Dst.String())
		} else if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, unix.ESRCH) {
			problems = append(problems, fmt.Errorf("remove route to %s: %w", route.Dst, err))
		}
	}
	for to, route := range wanted {
		_, route.Dst, err = net.ParseCIDR(to)
		if err != nil {
			return err
		}
		route.Protocol = protocol
		if err := netlink.RouteReplace(&route); err != nil {
			problems = append(problems, fmt.Errorf("add route to %s: %w", to, err))
		}
	}
	return errors.Join(problems...)
}

// remote are all pods on other nodes that this host reaches.
func (s State) remote() []Peer {
	all := slices.Clone(s.Outside)
	for _, n := range s.Networks {
		all = append(all, n.Peers...)
	}
	return all
}

// forwarding turns it on for packets that come to pods from outside, and says
// whether it was off before. A file remembers that, for a daemon that was
// started again.
func (k *Kernel) forwarding(uplink netlink.Link) (bool, error) {
	file := "ipv4/conf/" + uplink.Attrs().Name + "/forwarding"
	mark := filepath.Join(k.Dir, "forwarding")
	if _, err := os.Stat(mark); err == nil {
		return true, setting(file, "1")
	}
	now, err := os.ReadFile("/proc/sys/net/" + file)
	if err != nil {
		return false, fmt.Errorf("read whether %s forwards: %w", uplink.Attrs().Name, err)
	}
	if strings.TrimSpace(string(now)) == "1" {
		return false, nil
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return false, fmt.Errorf("remember that %s does not forward: %w", uplink.Attrs().Name, err)
	}
	if err := setting(file, "1"); err != nil {
		return false, fmt.Errorf("let %s forward: %w", uplink.Attrs().Name, err)
	}
	return true, nil
}

func (k *Kernel) restoreForwarding(uplink netlink.Link) error {
	mark := filepath.Join(k.Dir, "forwarding")
	if _, err := os.Stat(mark); err != nil {
		return nil
	}
	if err := setting("ipv4/conf/"+uplink.Attrs().Name+"/forwarding", "0"); err != nil {
		return fmt.Errorf("stop %s from forwarding: %w", uplink.Attrs().Name, err)
	}
	return os.Remove(mark)
}
