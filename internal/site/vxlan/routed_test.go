package vxlan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

func TestPodIsInSubnet(t *testing.T) {
	subnets := map[string]netip.Prefix{}
	for _, text := range []string{"10.128.2.0/24", "10.128.1.0/25", "10.130.0.0/26"} {
		subnets[text] = netip.MustParsePrefix(text)
	}
	r := NewRouted("10.128.2.0/24", subnets)
	for pod, want := range map[string]string{
		"10.128.1.1": "10.128.1.0/25", "10.128.1.127": "10.128.1.0/25", "10.128.1.128": "10.128.1.128/32",
		"10.128.2.255": "10.128.2.0/24", "10.128.0.9": "10.128.0.9/32", "10.130.0.64": "10.130.0.64/32",
	} {
		if got := r.of(netip.MustParseAddr(pod)).String(); got != want {
			t.Errorf("%s is in %s, want %s", pod, got, want)
		}
	}
	var none *Routed
	if got := none.of(netip.MustParseAddr("10.128.1.1")).Bits(); got != 32 || r.Own != subnets["10.128.2.0/24"] {
		t.Errorf("without subnets: /%d; own: %v", got, r.Own)
	}
}

// Probe passes, both for a site with routes and for one with tunnels.
func TestKernelSupportsNetworks(t *testing.T) {
	testutil.Require(t, testutil.Root)
	for _, routed := range []bool{true, false} {
		for _, ipv6 := range []siteconf.IPv6{{}, second} {
			if err := Probe(t.Context(), "nft", routed, ipv6); err != nil {
				t.Errorf("routed: %t, %v: %v", routed, ipv6, err)
			}
		}
	}
}

// In a new network namespace, pods of one user on a node reach each other, and pods
// of different users do not. When they have gone, nothing is left.
func TestRoutedPodsOfUsersAreSeparate(t *testing.T) {
	testutil.Require(t, testutil.Root)
	dir := t.TempDir()
	linux.OnNewThread(func() {
		if err := routeOnANode(t.Context(), dir); err != nil {
			t.Error(err)
		}
	})
}

func routeOnANode(ctx context.Context, dir string) (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}); err != nil {
		return err
	}
	if err := errors.Join(testutil.SetUpLink("lo"), testutil.SetUpLink("eth0", netip.MustParsePrefix("192.168.1.11/24"))); err != nil {
		return err
	}
	s := routed()
	s.Port, s.Names = siteconf.TunnelPort, false
	// n3 is on another link.
	s.Networks[0].Peers = append(s.Networks[0].Peers, Peer{Address: netip.MustParseAddr("10.128.1.9"), Via: netip.MustParseAddr("192.168.2.13")})
	s.Networks[0].Local = append(s.Networks[0].Local, Pod{Address: netip.MustParseAddr("10.128.0.4"), Owner: 1001})
	s.Routed = NewRouted("n1", map[string]netip.Prefix{
		"n1": netip.MustParsePrefix("10.128.0.0/28"), "n2": netip.MustParsePrefix("10.128.0.16/28"), "n3": netip.MustParsePrefix("10.128.1.0/28"),
	})
	s.Networks[0].Peers[0].Address = netip.MustParseAddr("10.128.0.18")
	for i, n := range s.Networks {
		for j, pod := range n.Local {
			path := filepath.Join(dir, pod.Address.String())
			if err := NewNamespace(path, false); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, RemoveNamespace(path)) }()
			s.Networks[i].Local[j].Namespace = path
		}
	}
	var log bytes.Buffer
	k := &Kernel{NFT: "nft", Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))}
	former, host := s.Networks[0].Local[0].Address, s.Host
	// Do it twice, as after any change: a former pod's connections are removed, the
	// others stay.
	for i := range 2 {
		if err := track(uint16(1000+i), former, host, host, former); err != nil {
			return err
		}
		if err := k.Apply(ctx, s, true); err != nil {
			return err
		}
	}
	left, err := tracked(former)
	if err != nil {
		return err
	}
	if left[1000] || !left[1001] {
		return fmt.Errorf("connections that are tracked are from ports %v, want 1001 among them and not 1000", left)
	}
	if said := strings.Count(log.String(), "subnet=10.128.1.0/28 node=192.168.2.13"); said != 1 {
		return fmt.Errorf("that routers have to know n3 was said %d times: %s", said, &log)
	}
	routes, err := ourRoutes()
	if err != nil {
		return err
	}
	want := []string{"10.128.0.0/28", "10.128.0.10/32", "10.128.0.16/28", "10.128.0.2/32", "10.128.0.4/32", "10.128.0.9/32"}
	if !slices.Equal(routes, want) {
		return fmt.Errorf("routes %v, want %v", routes, want)
	}
	if err := s.checkReachability(); err != nil {
		return err
	}
	if err := k.mends(ctx, s); err != nil {
		return err
	}
	if err := forwards("1"); err != nil {
		return err
	}
	if err := k.Apply(ctx, State{Pods: s.Pods, Host: s.Host, Routed: s.Routed}, true); err != nil {
		return err
	}
	if err := forwards("0"); err != nil {
		return err
	}
	routes, err = ourRoutes()
	links, problem := netlink.LinkList()
	if len(routes) > 0 || len(links) > 2 {
		return fmt.Errorf("left: routes %v, %d interfaces", routes, len(links))
	}
	return errors.Join(err, problem)
}

// mends checks that pods are separated again after somebody has flushed all rules and
// a full check has run. It also checks that existing pods keep their neighbours
// without a gap when another pod comes.
func (k *Kernel) mends(ctx context.Context, s State) error {
	link, err := netlink.LinkByName(podName(s.Networks[0].Local[0].Address))
	if err != nil {
		return err
	}
	witness := neighbour(link, netip.MustParseAddr("10.128.0.13"), bridgeMAC())
	if err := netlink.NeighSet(witness); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "nft", "flush", "ruleset").CombinedOutput(); err != nil {
		return fmt.Errorf("flush all rules: %w: %s", err, out)
	}
	if err := k.Apply(ctx, s, true); err != nil {
		return err
	}
	if err := s.checkReachability(); err != nil {
		return fmt.Errorf("all rules were flushed: %w", err)
	}
	neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(neighbours, func(n netlink.Neigh) bool { return n.IP.Equal(witness.IP) }) {
		return fmt.Errorf("a change elsewhere has flushed the neighbours of a pod: %v", neighbours)
	}
	return nil
}

// checkReachability sends from each pod to all others. Alice's pods are 10.128.0.2 and .4; the
// pods of bob's group are 10.128.0.9 and .10. A pod receives packets only from its
// own network.
func (s State) checkReachability() error {
	sockets := map[string]int{}
	for _, n := range s.Networks {
		for _, pod := range n.Local {
			socket, err := socketIn(pod.Namespace)
			if err != nil {
				return err
			}
			defer unix.Close(socket)
			sockets[pod.Address.String()] = socket
		}
	}
	// Allowed pairs are last, so that everything else has had time to arrive.
	for _, pair := range []string{
		"10.128.0.2 10.128.0.9", "10.128.0.2 10.128.0.10", "10.128.0.9 10.128.0.2", "10.128.0.10 10.128.0.4",
		"10.128.0.2 10.128.0.4", "10.128.0.4 10.128.0.2", "10.128.0.9 10.128.0.10", "10.128.0.10 10.128.0.9",
	} {
		from, to, _ := strings.Cut(pair, " ")
		// A packet that is dropped in the sender's output path returns EPERM.
		err := unix.Sendto(sockets[from], []byte(from), 0, &unix.SockaddrInet4{Port: 7000, Addr: netip.MustParseAddr(to).As4()})
		if err != nil && !errors.Is(err, unix.EPERM) {
			return fmt.Errorf("send %s: %w", pair, err)
		}
	}
	for to, from := range map[string]string{"10.128.0.2": "10.128.0.4", "10.128.0.4": "10.128.0.2", "10.128.0.9": "10.128.0.10", "10.128.0.10": "10.128.0.9"} {
		buffer := make([]byte, 64)
		n, _, err := unix.Recvfrom(sockets[to], buffer, 0)
		if err != nil || string(buffer[:n]) != from {
			return fmt.Errorf("%s hears %q first, want %s: %w", to, buffer[:max(n, 0)], from, err)
		}
		if n, _, err = unix.Recvfrom(sockets[to], buffer, unix.MSG_DONTWAIT); err == nil {
			return fmt.Errorf("%s hears %q as well", to, buffer[:n])
		}
	}
	return nil
}

// socketIn opens a UDP socket on port 7000 in a network namespace.
func socketIn(namespace string) (int, error) {
	here, err := netns.Get()
	if err != nil {
		return 0, err
	}
	defer here.Close()
	there, err := netns.GetFromPath(namespace)
	if err != nil {
		return 0, err
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		return 0, err
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(socket, &unix.SockaddrInet4{Port: 7000}), unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
	}
	return socket, errors.Join(err, netns.Set(here))
}

func forwards(want string) error {
	got, err := os.ReadFile("/proc/sys/net/ipv4/conf/eth0/forwarding")
	if err != nil || strings.TrimSpace(string(got)) != want {
		return fmt.Errorf("whether the host forwards: %q, want %s: %w", got, want, err)
	}
	return nil
}

func ourRoutes() ([]string, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	var all []string
	for _, route := range routes {
		all = append(all, route.Dst.String())
	}
	slices.Sort(all)
	return all, err
}
