package vxlan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/site/siteconf"
	"berth.dev/berth/internal/testutil"
)

// In a new network namespace, on bridges and routed, running pods get a second
// address when the site adds a range. Pods of one user reach each other by it, and
// pods of different users do not. When they have gone, the host is as before.
func TestPodsHaveSecondAddress(t *testing.T) {
	testutil.Require(t, testutil.Root)
	subnets := map[string]netip.Prefix{"n1": netip.MustParsePrefix("10.128.0.0/28"), "n2": netip.MustParsePrefix("10.128.0.16/28")}
	for name, routed := range map[string]*Routed{"bridged": nil, "routed": NewRouted("n1", subnets)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			linux.OnNewThread(func() {
				if err := checkIPv6OnANode(t.Context(), dir, routed); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func checkIPv6OnANode(ctx context.Context, dir string, routed *Routed) (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}); err != nil {
		return err
	}
	if err := errors.Join(testutil.SetUpLink("lo"), testutil.SetUpLink("eth0", netip.MustParsePrefix("192.168.1.11/24"))); err != nil {
		return err
	}
	if err := setting6("eth0", "accept_ra", "1"); err != nil {
		return err
	}
	s := example()
	s.Names, s.Routed = false, routed
	s.Networks[0].Local = append(s.Networks[0].Local, Pod{Address: netip.MustParseAddr("10.128.0.4"), Owner: 1001})
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
	k := &Kernel{NFT: "nft", Dir: dir}
	if err := k.Apply(ctx, s, true); err != nil {
		return err
	}
	if err := hostIs("0", "1", false); err != nil {
		return fmt.Errorf("without a range: %w", err)
	}
	s.IPv6 = second
	if err := k.refused(ctx, s); err != nil {
		return err
	}
	// Do it twice, as after any change.
	for range 2 {
		if err := k.Apply(ctx, s, true); err != nil {
			return err
		}
	}
	if err := hostIs("1", "2", true); err != nil {
		return err
	}
	if err := s.checkRoutesIPv6(); err != nil {
		return err
	}
	for _, n := range s.Networks {
		for _, pod := range n.Local {
			if err := looksIPv6(s, pod); err != nil {
				return fmt.Errorf("pod %s: %w", pod.Address, err)
			}
		}
	}
	if err := s.checkReachabilityIPv6(); err != nil {
		return err
	}
	if err := s.checkSpoofing(); err != nil {
		return err
	}
	if err := k.Apply(ctx, State{Pods: s.Pods, Gateway: s.Gateway, Host: s.Host, Routed: s.Routed, IPv6: s.IPv6}, true); err != nil {
		return err
	}
	// A router of the site may route to pods that this host does not know.
	if err := s.checkSpoofing(); err != nil {
		return fmt.Errorf("without pods: %w", err)
	}
	routes, err := routesIPv6()
	if err != nil || len(routes) > 0 {
		return fmt.Errorf("routes %v are left: %w", routes, err)
	}
	marks, err := filepath.Glob(k.mark6("*"))
	if err != nil || len(marks) > 0 {
		return fmt.Errorf("files %v are left: %w", marks, err)
	}
	return hostIs("0", "1", false)
}

// refused checks that a host whose rules do not load forwards nothing.
func (k *Kernel) refused(ctx context.Context, s State) error {
	path := os.Getenv("PATH")
	if err := os.Setenv("PATH", k.Dir); err != nil {
		return err
	}
	err := k.Apply(ctx, s, true)
	if err := os.Setenv("PATH", path); err != nil {
		return err
	}
	if err == nil {
		return errors.New("rules load without nft")
	}
	if err := hostIs("0", "1", false); err != nil {
		return fmt.Errorf("without rules: %w", err)
	}
	return nil
}

// checkSpoofing checks that a process of this host can send to a pod on another host only
// from an address of this host.
func (s State) checkSpoofing() error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	own := netip.MustParseAddr("2001:db8:1::11")
	all := prefixOf(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	if err := errors.Join(give(&netlink.Handle{}, link, &netlink.Addr{IPNet: single(own), Flags: unix.IFA_F_NODAD}),
		netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: all})); err != nil {
		return err
	}
	remote := s.IPv6.Second(netip.MustParseAddr("10.128.0.18"))
	// The kernel makes a new address a local one a moment later, in a work queue.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if err = sendAs(own, remote); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("sent as this host: %w", err)
		}
	}
	for source, want := range map[netip.Addr]error{
		netip.MustParseAddr("2001:db8:1::12"):            unix.EPERM,
		s.IPv6.Second(netip.MustParseAddr("10.128.0.2")): unix.EPERM, s.IPv6.Second(netip.MustParseAddr("10.128.0.99")): unix.EPERM,
	} {
		if err := sendAs(source, remote); !errors.Is(err, want) {
			return fmt.Errorf("sent as %s: %w, want %w", source, err, want)
		}
	}
	// Packets to other destinations may use any address that is not a pod's.
	outside := netip.MustParseAddr("2001:db8:2::1")
	if err := sendAs(s.IPv6.Second(netip.MustParseAddr("10.128.0.2")), outside); !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("sent to the outside as a pod: %w", err)
	}
	return sendAs(netip.MustParseAddr("2001:db8:1::12"), outside)
}

func sendAs(source, to netip.Addr) error {
	socket, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	if err := errors.Join(unix.SetsockoptInt(socket, unix.SOL_IPV6, unix.IPV6_FREEBIND, 1), unix.Bind(socket, &unix.SockaddrInet6{Addr: source.As16()})); err != nil {
		return err
	}
	return unix.Sendto(socket, []byte("forged"), 0, &unix.SockaddrInet6{Port: 7000, Addr: to.As16()})
}

// hostIs checks whether the host forwards, its interface's accept_ra, and whether it
// has the next-hop address.
func hostIs(forwarding, listens string, hop bool) error {
	for file, want := range map[string]string{"all/forwarding": forwarding, "eth0/accept_ra": listens} {
		if got := read6(file); got != want {
			return fmt.Errorf("%s is %s, want %s", file, got, want)
		}
	}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	addresses, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return err
	}
	next := siteconf.NextHop(netip.MustParseAddr("192.168.1.11"))
	if got := slices.ContainsFunc(addresses, func(a netlink.Addr) bool { return a.IP.Equal(next.AsSlice()) }); got != hop {
		return fmt.Errorf("the host is a next hop: %t; its addresses: %v", got, addresses)
	}
	return nil
}

func read6(file string) string {
	text, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + file)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

// checkRoutesIPv6 checks that the host has routes to its own pods and to the pod on n2.
func (s State) checkRoutesIPv6() error {
	want := []string{"::a80:12/128", "::a80:2/128", "::a80:4/128", "::a80:9/128", "::a80:a/128"}
	if s.Routed != nil {
		want = []string{"::a80:0/124", "::a80:10/124", "::a80:2/128", "::a80:4/128", "::a80:9/128", "::a80:a/128"}
	}
	got, err := routesIPv6()
	if err != nil || !slices.Equal(got, want) {
		return fmt.Errorf("routes %v, want %v: %w", got, want, err)
	}
	return nil
}

// routesIPv6 returns our routes, without the prefix that all of them share.
func routesIPv6() ([]string, error) {
	routes, err := routesOf([]int{netlink.FAMILY_V6}, &netlink.Route{Protocol: protocol}, netlink.RT_FILTER_PROTOCOL)
	var all []string
	for _, route := range routes {
		all = append(all, strings.TrimPrefix(route.Dst.String(), "fd42:6265:7274:1"))
	}
	slices.Sort(all)
	return all, err
}

// looksIPv6 checks that a pod has exactly this address, usable at once, and ignores
// routers.
func looksIPv6(s State, pod Pod) error {
	return inside(pod.Namespace, func() error {
		for file, want := range map[string]string{"eth0/disable_ipv6": "0", "eth0/accept_ra": "0", "eth0/accept_dad": "0", "eth0/addr_gen_mode": "1", "default/accept_ra": "0", "lo/disable_ipv6": "0"} {
			if got := read6(file); got != want {
				return fmt.Errorf("%s is %s, want %s", file, got, want)
			}
		}
		link, err := netlink.LinkByName(podLink)
		if err != nil {
			return err
		}
		addresses, err := netlink.AddrList(link, netlink.FAMILY_V6)
		if err != nil {
			return err
		}
		want := s.IPv6.Second(pod.Address).String() + "/96"
		if len(addresses) != 1 || addresses[0].IPNet.String() != want || addresses[0].Flags&unix.IFA_F_TENTATIVE != 0 {
			return fmt.Errorf("it has %v, want %s alone", addresses, want)
		}
		return nil
	})
}

// inside runs f in a network namespace and returns to the current one.
func inside(namespace string, f func() error) error {
	here, err := netns.Get()
	if err != nil {
		return err
	}
	defer here.Close()
	there, err := netns.GetFromPath(namespace)
	if err != nil {
		return err
	}
	defer there.Close()
	if err := netns.Set(there); err != nil {
		return err
	}
	return errors.Join(f(), netns.Set(here))
}

// checkReachabilityIPv6 works like checkReachability with the second addresses.
func (s State) checkReachabilityIPv6() error {
	sockets := map[string]int{}
	for _, n := range s.Networks {
		for _, pod := range n.Local {
			err := inside(pod.Namespace, func() error {
				socket, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				sockets[pod.Address.String()] = socket
				return errors.Join(unix.Bind(socket, &unix.SockaddrInet6{Port: 7000}), unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 20}))
			})
			if err != nil {
				return err
			}
		}
	}
	defer func() {
		for _, socket := range sockets {
			unix.Close(socket)
		}
	}()
	// Allowed pairs are last, so that everything else has had time to arrive.
	for _, pair := range []string{
		"10.128.0.2 10.128.0.9", "10.128.0.2 10.128.0.10", "10.128.0.9 10.128.0.2", "10.128.0.10 10.128.0.4",
		"10.128.0.2 10.128.0.4", "10.128.0.4 10.128.0.2", "10.128.0.9 10.128.0.10", "10.128.0.10 10.128.0.9",
	} {
		from, to, _ := strings.Cut(pair, " ")
		there := s.IPv6.Second(netip.MustParseAddr(to)).As16()
		// A packet that is dropped in the sender's output path returns EPERM or
		// EACCES.
		err := unix.Sendto(sockets[from], []byte(from), 0, &unix.SockaddrInet6{Port: 7000, Addr: there})
		if err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
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
