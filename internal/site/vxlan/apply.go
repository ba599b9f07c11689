package vxlan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Kernel configures berthd's part of this node's kernel.
type Kernel struct {
	// NFT is the program that loads rules.
	NFT string
	// Dir holds the former values of settings to restore.
	Dir string
	Log *slog.Logger

	mu sync.Mutex
	// last holds the rules that were loaded last. They are in force unless someone removed them.
	last string
	// counting reports whether this Kernel has loaded the rules that count connections of
	// pods.
	counting bool
	// logged holds the subnets that warnRouted has already logged.
	logged map[netip.Prefix]bool
	// port is the port of existing tunnels, 0 before the first look at them.
	port uint16
	// interfacesCleared reports whether this node's addresses were removed from all
	// interfaces to pods.
	interfacesCleared bool
	// applied is the state that was applied last, nil if that failed.
	applied *State
}

// Apply makes the kernel match the state. It may be called at any time, whatever has changed
// in between, and again after an error. Without check, it assumes that the state that it
// applied last is still in force.
func (k *Kernel) Apply(ctx context.Context, s State, check bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !check && k.applied != nil && reflect.DeepEqual(s, *k.applied) {
		return nil
	}
	if check {
		// Others may have flushed all rules, as a restart of nftables.service does. Asking nft
		// for the rules costs as much as loading them.
		k.last = ""
	}
	k.applied = nil
	wanted := s
	if err := k.apply(ctx, s); err != nil {
		return err
	}
	k.applied = &wanted
	return nil
}

func (k *Kernel) apply(ctx context.Context, s State) error {
	uplink, mtu, err := uplinkOf(s.Host)
	if err != nil {
		return err
	}
	if s.dual() {
		if err := checkIPv6Enabled(uplink); err != nil {
			return err
		}
	}
	if err := s.checkAs(); err != nil {
		return err
	}
	if !s.active() {
		// Remove the interfaces first, so that none is ever without the rules that guard it.
		_, err := k.forwarding(nil)
		err6 := k.forwarding6(false)
		return errors.Join(k.prune(s), k.assignNodeAddresses(s), k.routes(s, uplink, nil), k.gateways(s, uplink, nil), s.nextHop(uplink), err, err6, k.load(ctx, s.rules(nil)))
	}
	s.uplink = uplink.Attrs().Name
	forwarding := []string{s.uplink}
	if s.forwards() {
		// The hosts' link may be one of a gateway's outside links. Its packets may come from
		// pods, so its rules differ.
		s.Interfaces = slices.DeleteFunc(slices.Clone(s.Interfaces), func(name string) bool { return name == uplink.Attrs().Name })
		forwarding = append(forwarding, s.Interfaces...)
	}
	own, err := netlink.AddrList(uplink, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", uplink.Attrs().Name, err)
	}
	s.distant = s.beyondLink(own)
	opened, err := k.forwarding(forwarding)
	if err != nil {
		return err
	}
	if s.opened6, err = k.forwards6(s.dual()); err != nil {
		return err
	}
	if err := k.moveTunnels(s.Port); err != nil {
		return err
	}
	// Load the rules first, so that this host never forwards for others.
	if err := k.load(ctx, s.rules(opened)); err != nil {
		return err
	}
	if err := k.forwarding6(s.dual()); err != nil {
		return err
	}
	problems := []error{k.prune(s), s.nextHop(uplink), k.assignNodeAddresses(s)}
	for _, n := range s.Networks {
		if s.Routed != nil {
			problems = append(problems, k.pods(s, n, nil, mtu))
		} else {
			problems = append(problems, k.network(s, n, mtu-overhead))
		}
	}
	far, err := k.distant(s, mtu-overhead)
	return errors.Join(append(problems, err, k.routes(s, uplink, far), k.gateways(s, uplink, far))...)
}

// load loads the rules with nft, all or nothing. It does nothing if they are the rules that were
// loaded last, as when a job ends on another node.
func (k *Kernel) load(ctx context.Context, rules string) error {
	if rules == k.last {
		return nil
	}
	k.last = ""
	command := exec.CommandContext(ctx, k.NFT, "-f", "-")
	text := rules
	if !k.counting {
		// A previous daemon may have used another bound.
		text = clearFlows + rules
	}
	command.Stdin = strings.NewReader(text)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("load nftables rules: %w: %s", err, out)
	}
	k.last, k.counting = rules, true
	return nil
}

// uplinkOf returns the interface with the address of this host, and its MTU in bytes.
func uplinkOf(host netip.Addr) (netlink.Link, int, error) {
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, 0, fmt.Errorf("list addresses of the host: %w", err)
	}
	for _, a := range addresses {
		if !a.IP.Equal(host.AsSlice()) {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return nil, 0, fmt.Errorf("look at the interface of %s: %w", host, err)
		}
		return link, link.Attrs().MTU, nil
	}
	return nil, 0, fmt.Errorf("no interface has the address %s of this host", host)
}

// prune removes the interfaces of berthd that no network needs. The kernel removes the routes
// through them.
func (k *Kernel) prune(s State) error {
	wanted := map[string]bool{}
	for _, n := range s.Networks {
		if s.Routed == nil {
			wanted[bridgeName(n.VNI)], wanted[tunnelName(n.VNI)] = true, true
		}
		for _, pod := range n.Local {
			wanted[podName(pod.Address)] = true
		}
	}
	if len(s.distant) > 0 {
		wanted[tunnelName(gatewayTunnel)] = true
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var problems []error
	for _, link := range links {
		name := link.Attrs().Name
		if !ours(name) || wanted[name] {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !isGone(err) {
			problems = append(problems, fmt.Errorf("remove interface %s: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

// ours reports whether bridgeName or a similar function made a name, not only whether it begins
// with the same prefix.
func ours(name string) bool {
	rest, found := strings.CutPrefix(name, ownerPrefix)
	if !found || rest == "" {
		return false
	}
	digits := map[byte]int{'b': 6, 't': 6, 'p': 8}[rest[0]]
	return digits > 0 && len(rest) == 1+digits && strings.Trim(rest[1:], "0123456789abcdef") == ""
}

// network makes the bridge, the tunnel and the interfaces of pods of one network.
func (k *Kernel) network(s State, n Network, mtu int) error {
	bridge, err := k.bridge(s, n, mtu)
	if err != nil {
		return err
	}
	tunnel, err := k.tunnel(s, n, bridge, mtu)
	if err != nil {
		return err
	}
	return errors.Join(k.peers(s, n.Peers, tunnel, true), k.pods(s, n, bridge, mtu))
}

// pods connects a network's pods on this node, to its bridge if there is one.
func (k *Kernel) pods(s State, n Network, bridge netlink.Link, mtu int) error {
	var problems []error
	for _, pod := range n.Local {
		if err := k.pod(s, pod, bridge, mtu); err != nil {
			problems = append(problems, fmt.Errorf("connect pod %s: %w", pod.Address, err))
		}
	}
	return errors.Join(problems...)
}

func (k *Kernel) bridge(s State, n Network, mtu int) (netlink.Link, error) {
	name := bridgeName(n.VNI)
	no := false
	link, err := ensure(&netlink.Bridge{
		LinkAttrs:         netlink.LinkAttrs{Name: name, MTU: mtu, HardwareAddr: bridgeMAC(), TxQLen: -1},
		MulticastSnooping: &no,
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(setting("ipv4/conf/"+name+"/forwarding", "1"), s.setIPv6(name)); err != nil {
		return nil, fmt.Errorf("configure bridge %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("start bridge %s: %w", name, err)
	}
	return link, nil
}

func (s State) vxlan(vni uint32, mtu int) *netlink.Vxlan {
	return &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: tunnelName(vni), MTU: mtu, TxQLen: -1},
		VxlanId:   int(vni),
		SrcAddr:   s.Host.AsSlice(),
		Port:      int(s.Port),
		PortLow:   firstSource, PortHigh: LastSource,
		Learning: false,
		// The tunnel answers ARP for the pods that it knows, and forwards no ARP request.
		Proxy: true,
	}
}

func (k *Kernel) tunnel(s State, n Network, bridge netlink.Link, mtu int) (netlink.Link, error) {
	name := tunnelName(n.VNI)
	link, err := ensure(s.vxlan(n.VNI, mtu))
	if err != nil {
		return nil, err
	}
	if err := plug(link, bridge); err != nil {
		return nil, err
	}
	if err := s.setIPv6(name); err != nil {
		return nil, fmt.Errorf("configure tunnel %s: %w", name, err)
	}
	return link, s.startTunnel(link)
}

// startTunnel starts a tunnel, so that the kernel opens the port. A program that has the port on
// even one address of the host prevents that.
func (s State) startTunnel(link netlink.Link) error {
	err := netlink.LinkSetUp(link)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("start tunnel %s: UDP port %d: %w: end the program that has it: ss -lunp sport = :%[2]d", link.Attrs().Name, s.Port, err)
	}
	if err != nil {
		return fmt.Errorf("start tunnel %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// ensure makes an interface unless it exists. It replaces an interface of the same name but
// another type, because the name is reserved for berthd.
func ensure(want netlink.Link) (netlink.Link, error) {
	name := want.Attrs().Name
	have, err := netlink.LinkByName(name)
	if err == nil && have.Type() == want.Type() {
		return have, nil
	}
	if err == nil {
		if err := netlink.LinkDel(have); err != nil {
			return nil, fmt.Errorf("remove interface %s: %w", name, err)
		}
	}
	if err := netlink.LinkAdd(want); err != nil {
		return nil, fmt.Errorf("create %s %s: %w", want.Type(), name, err)
	}
	return netlink.LinkByName(name)
}

// moveTunnels removes tunnels at another port, because a tunnel cannot change its port and the
// rules guard only this one.
func (k *Kernel) moveTunnels(port uint16) error {
	if k.port == port {
		return nil
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, link := range links {
		tunnel, is := link.(*netlink.Vxlan)
		if !is || !ours(tunnel.Name) || tunnel.Port == int(port) {
			continue
		}
		if err := netlink.LinkDel(tunnel); err != nil && !isGone(err) {
			return fmt.Errorf("remove interface %s: %w", tunnel.Name, err)
		}
		k.Log.Warn("a tunnel is made again: hosts whose tunnels end at the former port do not reach the pods here", "interface", tunnel.Name, "was", tunnel.Port, "is", port)
	}
	k.port = port
	return nil
}

// plug makes an interface a port of a bridge. The bridge does not learn addresses from the port
// and does not flood it.
func plug(port, bridge netlink.Link) error {
	if port.Attrs().MasterIndex == bridge.Attrs().Index {
		return nil
	}
	if err := netlink.LinkSetMaster(port, bridge); err != nil {
		return fmt.Errorf("put %s on bridge %s: %w", port.Attrs().Name, bridge.Attrs().Name, err)
	}
	if err := errors.Join(netlink.LinkSetLearning(port, false), netlink.LinkSetFlood(port, false)); err != nil {
		return fmt.Errorf("configure port %s: %w", port.Attrs().Name, err)
	}
	return nil
}

func single(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// current returns the value of a setting of the network namespace.
func current(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys/net", file))
	return strings.TrimSpace(string(text)), err
}

// setting writes a value unless it is already set. Writing takes the kernel's RTNL lock, for
// which the system call restarts again and again; reading does not take it.
func setting(file, value string) error {
	if now, err := current(file); err == nil && now == value {
		return nil
	}
	return os.WriteFile(filepath.Join("/proc/sys/net", file), []byte(value), 0)
}

// isGone reports whether an error says that an interface does not exist.
func isGone(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "no such device")
}
