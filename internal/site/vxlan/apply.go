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

// Kernel is this node's, as far as it is ours.
type Kernel struct {
	// NFT is the program that loads rules.
	NFT string
	// Dir keeps what has to be put back as it was.
	Dir string
	Log *slog.Logger

	mu sync.Mutex
	// last are the rules that were loaded last, and are in force unless others removed them.
	last string
	// counting: what counts the pods' connections, if anything does, was loaded by us.
	counting bool
	// told are the subnets of which it was said that routers lead to them.
	told map[netip.Prefix]bool
	// port is that of the tunnels that are there, 0 before anybody has looked.
	port uint16
	// left: no interface to pods has this node's addresses any more.
	left bool
	// applied is the state that was made true last, nil where that failed.
	applied *State
}

// Apply makes the state true. It may be called at any time, after whatever
// happened in between; the next call mends what this one left undone. Without check,
// a state that it made true the last time is taken to be so still.
func (k *Kernel) Apply(ctx context.Context, s State, check bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !check && k.applied != nil && reflect.DeepEqual(s, *k.applied) {
		return nil
	}
	if check {
		// Whoever flushes all rules (nftables.service does when it is started again) does
		// not tell, and to ask nft costs as much as to load them.
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
		if err := speak(uplink); err != nil {
			return err
		}
	}
	if err := s.checkAs(); err != nil {
		return err
	}
	if !s.active() {
		// Interfaces first: without rules there must be nothing that they guard.
		_, err := k.forwarding(nil)
		err6 := k.forwarding6(false)
		return errors.Join(k.prune(s), k.towardsPods(s), k.routes(s, uplink, nil), k.gateways(s, uplink, nil), s.nextHop(uplink), err, err6, k.load(ctx, s.rules(nil)))
	}
	s.uplink = uplink.Attrs().Name
	forwarding := []string{s.uplink}
	if s.forwards() {
		// A gateway may have the hosts' link among those to the outside, and what
		// comes by that may be pods'.
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
	// Rules first: there must be no moment in which this host is a router for others.
	if err := k.load(ctx, s.rules(opened)); err != nil {
		return err
	}
	if err := k.forwarding6(s.dual()); err != nil {
		return err
	}
	problems := []error{k.prune(s), s.nextHop(uplink), k.towardsPods(s)}
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

// load has nft read the rules, all or nothing. Those that were loaded last are left,
// but where all is looked at: a job that ends on another node changes nothing here.
func (k *Kernel) load(ctx context.Context, rules string) error {
	if rules == k.last {
		return nil
	}
	k.last = ""
	command := exec.CommandContext(ctx, k.NFT, "-f", "-")
	text := rules
	if !k.counting {
		// Another daemon may have counted to another bound.
		text = clearFlows + rules
	}
	command.Stdin = strings.NewReader(text)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("load nftables rules: %w: %s", err, out)
	}
	k.last, k.counting = rules, true
	return nil
}

// uplinkOf returns the interface with the address of this host.
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

// prune removes the interfaces and routes that no network has.
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

// ours are the names that bridgeName and its like make, and no others that
// begin so.
func ours(name string) bool {
	rest, found := strings.CutPrefix(name, ownerPrefix)
	if !found || rest == "" {
		return false
	}
	digits := map[byte]int{'b': 6, 't': 6, 'p': 8}[rest[0]]
	return digits > 0 && len(rest) == 1+digits && strings.Trim(rest[1:], "0123456789abcdef") == ""
}

// network makes the bridge, the tunnel and the interfaces of pods, of one network.
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

// pods connects those of a network that are here, to its bridge if it has one.
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
	if err := errors.Join(setting("ipv4/conf/"+name+"/forwarding", "1"), s.speakIPv6(name)); err != nil {
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
		// It answers for the pods it knows, and passes no question on.
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
	if err := s.speakIPv6(name); err != nil {
		return nil, fmt.Errorf("configure tunnel %s: %w", name, err)
	}
	return link, s.startTunnel(link)
}

// startTunnel has the kernel take the port. Whoever holds it on one address of the host alone is in
// the way.
func (s State) startTunnel(link netlink.Link) error {
	err := netlink.LinkSetUp(link)
	if errors.Is(err, unix.EADDRINUSE) {
		return fmt.Errorf("start tunnel %s: UDP port %d: %w: end who has it: ss -lunp sport = :%[2]d", link.Attrs().Name, s.Port, err)
	}
	if err != nil {
		return fmt.Errorf("start tunnel %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// ensure makes an interface unless it is there. One of that name but of another
// kind is nobody's else: the name is ours.
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

// moveTunnels removes those at another port, which a tunnel cannot leave: the rules guard this
// one alone.
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
		k.Log.Warn("a tunnel is made anew: hosts whose tunnels end at the former port do not reach the pods here", "interface", tunnel.Name, "was", tunnel.Port, "is", port)
	}
	k.port = port
	return nil
}

// plug makes an interface a port of a bridge, which learns nothing from it.
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

// current is what a setting of the network namespace is.
func current(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc/sys/net", file))
	return strings.TrimSpace(string(text)), err
}

// setting writes what is not so yet: to write costs the kernel's lock of all networks,
// for which it spins, and to read does not.
func setting(file, value string) error {
	if now, err := current(file); err == nil && now == value {
		return nil
	}
	return os.WriteFile(filepath.Join("/proc/sys/net", file), []byte(value), 0)
}

func isGone(err error) bool {
	var missing netlink.LinkNotFoundError
	return errors.As(err, &missing) || errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "no such device")
}
