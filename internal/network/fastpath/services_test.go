package fastpath

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
	"berth.dev/berth/internal/testutil"
)

func TestServiceIsResolvedOnConnect(t *testing.T) {
	const service = "10.96.0.7:80"
	l, client, server := pair(t, labConfig{services: map[string]Route{service: route(0, "10.42.1.20:5000")}})
	serving := server.serve("serve", "5000")
	asked := client.run("ask", service)
	expect(t, asked, client.address, netip.MustParseAddrPort(service).Addr(), "switched")
	expect(t, serving.wait(), server.address, client.address, "switched")
	_ = l
}

// route returns a Route to the targets.
func route(sticky time.Duration, targets ...string) Route {
	r := Route{Sticky: sticky}
	for _, target := range targets {
		r.Targets = append(r.Targets, netip.MustParseAddrPort(target))
	}
	return r
}

func TestServiceWithPodOnClientsNode(t *testing.T) {
	const service = "10.96.0.7:80"
	l, client, _ := pair(t, labConfig{services: map[string]Route{service: route(0, "10.42.0.21:5000")}})
	near := l.hosts[0].addPod(21)
	serving := near.serve("serve", "5000", "n=3")
	expect(t, client.run("ask", service), client.address, netip.MustParseAddrPort(service).Addr(), "switched")
	expect(t, near.run("ask", service), near.address, netip.MustParseAddrPort(service).Addr(), "switched")
	expect(t, client.run("ask", near.at(5000)), client.address, near.address, "overlay")
	serving.wait()
}

// TestServiceSessionAffinity connects to a Service of two pods, which answer with their
// names: switched and on the overlay, with a Switch that dies in between.
func TestServiceSessionAffinity(t *testing.T) {
	const sticky, brief, loose = "10.96.0.7:80", "10.96.0.8:80", "10.96.0.9:80"
	targets := []string{"10.42.1.20:5000", "10.42.0.21:5000"}
	l, client, server := pair(t, labConfig{services: map[string]Route{
		sticky: route(time.Hour, targets...), brief: route(time.Nanosecond, targets...), loose: route(0, targets...),
	}})
	for _, p := range []*labPod{server, l.hosts[0].addPod(21)} {
		defer p.serve("who", "5000").kill()
	}
	first := client.run("whois", sticky, "20")
	if strings.Contains(first, " ") {
		t.Errorf("20 connections reached %s", first)
	}
	l.hosts[0].kill()
	l.hosts[0].startSwitch()
	for _, how := range []string{"", "duplicate", "duplicate nonblock", "duplicate v6"} {
		before := l.hosts[0].counters()[countNames[countConnected]]
		if got := client.run("whois", append([]string{sticky, "5"}, strings.Fields(how)...)...); got != first {
			t.Errorf("%q: then %s, not %s", how, got, first)
		}
		switched := l.hosts[0].counters()[countNames[countConnected]] - before
		if want := map[bool]uint64{true: 5}[how == ""]; switched != want {
			t.Errorf("%q: %d of 5 connections were switched, want %d", how, switched, want)
		}
	}
	for _, service := range []string{brief, loose} {
		if got := client.run("whois", service, "40"); !strings.Contains(got, " ") {
			t.Errorf("40 connections to %s reached %s alone", service, got)
		}
	}
}

// TestUnswitchedPodsGetTheirShare asks a Service of two pods, one of
// which has no filter.
func TestUnswitchedPodsGetTheirShare(t *testing.T) {
	const service, n = "10.96.0.7:80", 200
	l, client, server := pair(t, labConfig{services: map[string]Route{service: route(0, "10.42.1.20:5000", "10.42.1.21:5000")}})
	plain := l.hosts[1].addPod(21)
	plain.plain = true
	for _, p := range []*labPod{server, plain} {
		defer p.serve("who", "5000").kill()
	}
	for _, how := range []string{"", "nonblock", "v6"} {
		if got, want := client.run("whois", append([]string{service, fmt.Sprint(n)}, strings.Fields(how)...)...), "10.42.1.20 10.42.1.21"; got != want {
			t.Errorf("%q: %s answered, not %s", how, got, want)
		}
	}
	counters := l.hosts[0].counters()
	switched, left := counters[countNames[countConnected]], counters[countNames[countPeerOverlay]]
	if switched+left != 3*n || left < n || left > 2*n {
		t.Errorf("%d connections were switched and %d left to the overlay, of %d", switched, left, 3*n)
	}
}

func TestSteeredSocketsAreForgotten(t *testing.T) {
	const service, n = "10.96.0.7:80", minKnown + 200
	l, client, plain := pair(t, labConfig{services: map[string]Route{service: route(0, "10.42.1.20:5000")}})
	plain.plain = true
	defer plain.serve("who", "5000").kill()
	steered := func() (cookies []uint64) {
		for _, r := range l.hosts[0].records(t) {
			if r.kind == kindSteered {
				cookies = append(cookies, r.cookie)
			}
		}
		return cookies
	}
	defer client.serve("hold", service, "1").kill()
	open := steered()
	client.run("whois", service, fmt.Sprint(n))
	var left []uint64
	testutil.Eventually(t, "sockets that are forgotten", func() bool {
		left = steered()
		return len(left) < n/2
	})
	if len(open) != 1 || !slices.Contains(left, open[0]) {
		t.Errorf("of %x, which is open, and others %d are known", open, len(left))
	}
}

// who PORT [v6]: sends its address to each client, without end.
func who(args []string) error {
	network := "tcp4"
	if options(args[1:]).has("v6") {
		network = "tcp"
	}
	listener, err := net.Listen(network, ":"+args[0])
	if err != nil {
		return err
	}
	fmt.Println("ready")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if err := errors.Join(introduce(conn), conn.Close()); err != nil {
			return err
		}
	}
}

func introduce(conn net.Conn) error {
	own, err := ownAddress()
	if err == nil {
		_, err = fmt.Fprint(conn, own)
	}
	return err
}

func ownAddress() (netip.Addr, error) {
	link, err := net.InterfaceByName("eth0")
	if err != nil {
		return netip.Addr{}, err
	}
	addresses, err := link.Addrs()
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("no address")
}

// whoIs connects, and prints the name of each server that answers, for the command
// whois ADDRESS N [duplicate] [nonblock] [v6]. With a duplicate of its descriptor a socket stays on the overlay.
func whoIs(args []string) error {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	o := options(args[2:])
	family, flags := familyOf(args[0]), 0
	if o.has("v6") {
		family = unix.AF_INET6
	}
	if o.has("nonblock") {
		flags = unix.SOCK_NONBLOCK
	}
	answers := map[string]bool{}
	for range n {
		answer, err := askWho(args[0], family, flags, o.has("duplicate"))
		if err != nil {
			return err
		}
		answers[answer] = true
	}
	fmt.Println(strings.Join(slices.Sorted(maps.Keys(answers)), " "))
	return nil
}

func askWho(address string, family, flags int, duplicate bool) (string, error) {
	fd, err := newSocket(family, flags)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	if duplicate {
		other, err := unix.Dup(fd)
		if err != nil {
			return "", err
		}
		defer unix.Close(other)
	}
	if err := unix.Connect(fd, sockaddr(address, family)); err != nil && (err != unix.EINPROGRESS || flags == 0) {
		return "", fmt.Errorf("connect: %w", err)
	}
	if err := await(fd, unix.POLLIN); err != nil {
		return "", err
	}
	peer, err := unix.Getpeername(fd)
	if got, ok := sock.AddrPort(peer, err); !ok || got.String() != address {
		return "", fmt.Errorf("getpeername is %v, %w", got, err)
	}
	b := make([]byte, 64)
	k, err := unix.Read(fd, b)
	return string(b[:max(0, k)]), err
}
