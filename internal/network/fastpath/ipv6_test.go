package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// TestAllClientsAndServersAreSwitchedByIPv6 connects pods by IPv6, on hosts that
// reach each other by IPv4 and on hosts that do so by IPv6.
func TestAllClientsAndServersAreSwitchedByIPv6(t *testing.T) {
	for _, hosts6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("hosts6=%v", hosts6), func(t *testing.T) { testKinds(t, hosts6) })
	}
}

func testKinds(t *testing.T, hosts6 bool) {
	_, client, server := pair(t, labConfig{hostsIPv6: hosts6})
	clients := []string{"", "nonblock poll", "nonblock select", "nonblock epoll before edge", "epoll before", "bind=4711"}
	servers := []string{
		"v6", "v6 v6only", "v6 at=[" + server.ipv6.String() + "]", "v6 accept", "v6 nonblock poll", "v6 nonblock epoll edge", "v6 v6only select", "v6 epoll",
	}
	port := 5000
	ask := func(target, local netip.Addr, s, c string) {
		t.Run(fmt.Sprintf("server(%s)client(%s)to(%s)", s, c, target), func(t *testing.T) {
			port++
			if hosts6 {
				s, c = s+" hosts6", c+" hosts6"
			}
			serving := server.serve("serve", append([]string{fmt.Sprint(port)}, strings.Fields(s)...)...)
			asked := client.run("ask", append([]string{netip.AddrPortFrom(target, uint16(port)).String()}, strings.Fields(c)...)...)
			served := serving.wait()
			expect(t, asked, local, target, "switched")
			expect(t, served, target, local, "switched")
			a, b := strings.Fields(asked), strings.Fields(served)
			if netip.MustParseAddrPort(a[0]).Port() != netip.MustParseAddrPort(b[1]).Port() {
				t.Errorf("the client says %q, the server %q", asked, served)
			}
			if strings.Contains(c, "bind=") && !strings.HasSuffix(a[0], ":4711") {
				t.Errorf("bound to port 4711: %q", asked)
			}
		})
	}
	for _, s := range servers {
		for _, c := range clients {
			if s == "v6" || c == "" || c == "nonblock epoll before edge" {
				ask(server.ipv6, client.ipv6, s, c)
			}
		}
	}
	// Sockets of both kinds by IPv4.
	for _, s := range []string{"", "v6"} {
		for _, c := range []string{"", "v6"} {
			ask(server.address, client.address, s, c)
		}
	}
}

func TestUncertainIPv6ConnectionsStayOnOverlay(t *testing.T) {
	l, client, server := pair(t, labConfig{denied: []string{"[fd42:0:0:1::20]:5001"}})
	t.Run("a policy does not permit it", func(t *testing.T) {
		serving := server.serve("serve", "5001", "v6")
		expect(t, client.run("ask", server.at6(5001), "nonblock", "epoll", "before"), client.ipv6, server.ipv6, "overlay")
		expect(t, serving.wait(), server.ipv6, client.ipv6, "overlay")
		client.counts(t, countPolicy, 1)
	})
	t.Run("the server has no filter", func(t *testing.T) {
		plain := l.hosts[1].addPod(21)
		plain.plain = true
		serving := plain.serve("serve", "5000", "v6")
		expect(t, client.run("ask", plain.at6(5000)), client.ipv6, plain.ipv6, "overlay")
		serving.wait()
		client.counts(t, countPeerOverlay, 1)
	})
	t.Run("the client has no filter", func(t *testing.T) {
		plain := l.hosts[0].addPod(11)
		plain.plain = true
		serving := server.serve("serve", "5000", "v6", "nonblock", "epoll")
		expect(t, plain.run("ask", server.at6(5000)), plain.ipv6, server.ipv6, "overlay")
		expect(t, serving.wait(), server.ipv6, plain.ipv6, "overlay")
	})
	t.Run("a pod of the same node", func(t *testing.T) {
		neighbour := l.hosts[0].addPod(12)
		serving := neighbour.serve("serve", "5000", "v6", "epoll", "nonblock")
		expect(t, client.run("ask", neighbour.at6(5000)), client.ipv6, neighbour.ipv6, "overlay")
		serving.wait()
	})
	t.Run("the pod itself", func(t *testing.T) {
		for _, address := range []string{"[::1]:5000", "[::ffff:127.0.0.1]:5000", server.at6(5000)} {
			serving := server.serve("serve", "5000", "v6")
			if said := server.run("ask", address, "nonblock", "epoll", "before"); !strings.HasSuffix(said, "overlay") {
				t.Errorf("%s: %q", address, said)
			}
			serving.wait()
		}
	})
	t.Run("a duplicate of the socket", func(t *testing.T) {
		serving := server.serve("serve", "5000", "v6")
		expect(t, client.run("duplicate", server.at6(5000)), client.ipv6, server.ipv6, "overlay")
		serving.wait()
		client.counts(t, countDuplicated, 1)
	})
	t.Run("bound to another address", func(t *testing.T) {
		client.run("boundelsewhere", server.at6(5000))
		client.counts(t, countBound, 1)
	})
	t.Run("IPv6 alone is wanted", func(t *testing.T) {
		serving := server.serve("serve", "5000", "v6")
		if said, want := client.run("sixonly", "[::ffff:"+server.address.String()+"]:5000"), "network is unreachable"; said != want {
			t.Errorf("connect by IPv4: %q, not %q", said, want)
		}
		serving.kill()
	})
}

func TestRefusedAndUsedAgainByIPv6(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	first := server.serve("serve", "5000", "v6")
	for _, mode := range []string{"", "nonblock"} {
		if got := client.run("refused", server.at6(5999), mode); got != "connection refused" {
			t.Errorf("connect to a port without a listener (%s): %q", mode, got)
		}
	}
	client.counts(t, countNoListener, 2)
	expect(t, client.run("twice", server.at6(5999), server.at6(5000)), client.ipv6, server.ipv6, "switched")
	first.wait()
	// Nothing is there at the IPv6 address.
	four := server.serve("serve", "5001")
	if got := client.run("refused", server.at6(5001), ""); got != "connection refused" {
		t.Errorf("connect to a server of IPv4: %q", got)
	}
	four.kill()
	if got := client.run("refused", fmt.Sprintf("[fd42:0:0:%d::99]:5000", l.hosts[1].index)); got != "no route to host" {
		t.Errorf("connect to an address without a pod: %q", got)
	}
	serving := server.serve("serve", "5000", "v6", "n=2")
	expect(t, client.run("half", server.at6(5000)), client.ipv6, server.ipv6, "switched")
	expect(t, client.run("forked", server.at6(5000), "after"), client.ipv6, server.ipv6, "switched")
	serving.wait()
	if said := server.run("relisten", server.at6(5002), "200"); said != "done" {
		t.Error(said)
	}
}

// TestOneListenerHasBothFamilies connects to one listener by IPv4 and IPv6 at the same
// time.
func TestOneListenerHasBothFamilies(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	const n = 60
	serving := server.serve("goserve", "5000", fmt.Sprint(2*n))
	four, ipv6 := client.start("goask", server.at(5000), fmt.Sprint(n)), client.start("goask", server.at6(5000), fmt.Sprint(n))
	four.wait()
	ipv6.wait()
	serving.wait()
	client.counts(t, countConnected, 2*n)
	server.counts(t, countAccepted, 2*n)
}

// TestIPv6OptionsAreKnown runs programs that set options of IPv6 before and after a
// connect or accept.
func TestIPv6OptionsAreKnown(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	for i, to := range []string{server.at6(5000), "[::ffff:" + server.address.String() + "]:5001"} {
		serving := server.serve("serve", fmt.Sprint(5000+i), "v6", "tclass")
		if said := client.run("options6", to); said != "switched" {
			t.Errorf("%s: %q", to, said)
		}
		serving.wait()
	}
}

// options6 ADDRESS: sets options of IPv6 before it connects, and after.
func options6(args []string) error {
	fd, err := newSocket(unix.AF_INET6, 0)
	if err != nil {
		return err
	}
	set := func(class, hops int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_TCLASS, class),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, hops))
	}
	check := func(class, hops int) error {
		for name, want := range map[int]int{unix.IPV6_TCLASS: class, unix.IPV6_UNICAST_HOPS: hops, unix.IPV6_V6ONLY: 0} {
			got, err := unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, name)
			if err := returned(got, err, want); err != nil {
				return fmt.Errorf("option %d of IPv6: %w", name, err)
			}
		}
		return nil
	}
	if err := set(16, 9); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(args[0], unix.AF_INET6)); err != nil {
		return err
	}
	if !isSwitched(fd) {
		return errors.New("not switched")
	}
	if err := errors.Join(check(16, 9), set(32, 7), check(32, 7)); err != nil {
		return err
	}
	fmt.Println("switched")
	return exchange(fd, -1, false)
}

// ipv6Only connects a socket that accepts only IPv6, for the command sixonly ADDRESS.
func ipv6Only(args []string) error {
	fd, err := newSocket(unix.AF_INET6, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
		return err
	}
	fmt.Println(unix.Connect(fd, sockaddr(args[0], unix.AF_INET6)))
	return nil
}

func TestServicesByIPv6(t *testing.T) {
	const service, near, share, sticky = "[fd96::7]:80", "[fd96::8]:80", "[fd96::9]:80", "[fd96::a]:80"
	l, client, server := pair(t, labConfig{services: map[string]Route{
		service: route(0, "[fd42:0:0:1::20]:5000"),
		near:    route(0, "[fd42::21]:5000"),
		share:   route(0, "[fd42:0:0:1::20]:5001", "[fd42:0:0:1::22]:5001"),
		sticky:  route(time.Hour, "[fd42:0:0:1::20]:5001", "[fd42:0:0:1::22]:5001"),
	}})
	there := func(service string) netip.Addr { return netip.MustParseAddrPort(service).Addr() }
	t.Run("on another node", func(t *testing.T) {
		serving := server.serve("serve", "5000", "v6")
		expect(t, client.run("ask", service), client.ipv6, there(service), "switched")
		expect(t, serving.wait(), server.ipv6, client.ipv6, "switched")
	})
	t.Run("on the client's node", func(t *testing.T) {
		neighbour := l.hosts[0].addPod(21)
		serving := neighbour.serve("serve", "5000", "v6", "n=2")
		expect(t, client.run("ask", near), client.ipv6, there(near), "switched")
		expect(t, neighbour.run("ask", near), neighbour.ipv6, there(near), "switched")
		serving.wait()
	})
	plain := l.hosts[1].addPod(22)
	plain.plain = true
	for _, p := range []*labPod{server, plain} {
		defer p.serve("who", "5001", "v6").kill()
	}
	t.Run("of which a pod cannot be switched", func(t *testing.T) {
		const n = 100
		before := l.hosts[0].counters()
		for _, how := range []string{"", "nonblock"} {
			if got, want := client.run("whois", share, fmt.Sprint(n), how), "10.42.1.20 10.42.1.22"; got != want {
				t.Errorf("%q: %s answered, not %s", how, got, want)
			}
		}
		after := l.hosts[0].counters()
		switched := after[countNames[countConnected]] - before[countNames[countConnected]]
		left := after[countNames[countPeerOverlay]] - before[countNames[countPeerOverlay]]
		if switched+left != 2*n || left < n/2 || switched < n/2 {
			t.Errorf("%d connections were switched and %d left to the overlay, of %d", switched, left, 2*n)
		}
	})
	t.Run("with affinity", func(t *testing.T) {
		first := client.run("whois", sticky, "20")
		l.hosts[0].kill()
		l.hosts[0].startSwitch()
		for _, how := range []string{"", "duplicate", "duplicate nonblock"} {
			if got := client.run("whois", append([]string{sticky, "5"}, strings.Fields(how)...)...); got != first {
				t.Errorf("%q: then %s, not %s", how, got, first)
			}
		}
	})
}

func TestSteeredIPv6SocketsAreForgotten(t *testing.T) {
	const service, n = "[fd96::7]:80", minKnown + 200
	l, client, plain := pair(t, labConfig{services: map[string]Route{service: route(0, "[fd42:0:0:1::20]:5000")}})
	plain.plain = true
	defer plain.serve("who", "5000", "v6").kill()
	defer client.serve("hold", service, "1").kill()
	client.run("whois", service, fmt.Sprint(n))
	left := 0
	testutil.Eventually(t, "sockets that are forgotten", func() bool {
		left = 0
		for _, r := range l.hosts[0].records(t) {
			if r.kind == kindSteered {
				left++
			}
		}
		return left < n/2
	})
	if left == 0 {
		t.Error("the one that is open was forgotten, too")
	}
}

func TestNewPolicyClosesIPv6Connections(t *testing.T) {
	for _, hosts6 := range []bool{false, true} {
		for i, side := range []string{"the client's", "the server's"} {
			t.Run(fmt.Sprintf("hosts6=%v,%s", hosts6, side), func(t *testing.T) {
				l, client, server := pair(t, labConfig{hostsIPv6: hosts6})
				serving := server.serve("serve", "5000", "v6", "hosts6", "reset")
				other := server.serve("serve", "5001", "v6", "hosts6")
				cut := client.serve("awaitreset", server.at6(5000))
				stays := client.serve("slow", server.at6(5001))
				if got := l.hosts[i].deny(server.at6(5000)); got != "1 <nil>" {
					t.Errorf("cut %s, not one", got)
				}
				cut.wait()
				serving.wait()
				expect(t, stays.wait(), client.ipv6, server.ipv6, "switched")
				other.wait()
			})
		}
	}
}

func TestUnacceptedIPv6ConnectionIsResetWithListener(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	serving := server.serve("deaf", "5000", "v6")
	asking := client.serve("awaitreset", server.at6(5000))
	serving.kill()
	asking.wait()
}

func TestOutsideIsReachedByHostByIPv6(t *testing.T) {
	l := newLab(t, labConfig{hostsIPv6: true})
	client := l.hosts[0].addPod(10)
	address, from := l.echoOutside(t)
	for _, c := range []string{"", "nonblock poll", "nonblock epoll before edge", "epoll before"} {
		expect(t, client.run("ask", append([]string{address}, strings.Fields(c)...)...), client.ipv6, l.hosts[1].address, "switched")
		if got := <-from; got != l.hosts[0].address {
			t.Errorf("%q: the server sees %s", c, got)
		}
	}
	client.run("goask", address, "20")
	client.counts(t, countOutside, 24)
	nobody := netip.AddrPortFrom(l.hosts[1].address, 9).String()
	for _, mode := range []string{"", "nonblock"} {
		if got := client.run("refused", nobody, mode); got != "connection refused" {
			t.Errorf("connect to a port without a listener (%s): %q", mode, got)
		}
	}
	for _, goal := range []string{"::1", "fe80::1"} {
		if got, want := client.run("disconnect", address, l.hosts[0].secretService(goal), "28"), "disconnect: operation not supported"; got != want {
			t.Errorf("disconnect and connect to %s: %q, not %q", goal, got, want)
		}
	}
	cut := client.serve("awaitreset", address)
	if got := l.hosts[0].deny(address); got != "1 <nil>" {
		t.Errorf("cut %s, not one", got)
	}
	cut.wait()
}

// TestAttacksOfPodsByIPv6 attacks the addresses that a host has for itself, with sockets
// of IPv6, on hosts that reach each other by IPv4 and by IPv6.
func TestAttacksOfPodsByIPv6(t *testing.T) {
	const secret, stopped = "a secret", "disconnect: operation not supported"
	unchecked := without{Disconnect: true, Reconnect: true}
	for _, attack := range []struct {
		name    string
		goal    string // on the host
		length  int    // of the address of no family
		hosts6  bool
		without without
		allowed allowed
		want    string
		counted count
	}{
		{name: "disconnect", goal: "127.0.0.1", length: 16, want: stopped, counted: countDisconnect},
		{name: "disconnect", goal: "::1", length: 28, hosts6: true, want: stopped, counted: countDisconnect},
		{name: "disconnect", goal: "::1", length: 2, hosts6: true, want: stopped, counted: countDisconnect},
		{name: "disconnect", goal: "::1", length: 128, hosts6: true, want: stopped, counted: countDisconnect},
		{name: "disconnect", goal: "fe80::1", length: 28, hosts6: true, want: stopped, counted: countDisconnect},
		{name: "disconnect", goal: "127.0.0.1", length: 28, without: without{Disconnect: true}, want: "connect: transport endpoint is already connected", counted: countReconnect},
		{name: "disconnect", goal: "::1", length: 28, hosts6: true, without: without{Disconnect: true}, want: "connect: transport endpoint is already connected", counted: countReconnect},
		{name: "disconnect", goal: "fe80::1", length: 28, hosts6: true, without: without{Disconnect: true}, want: "connect: transport endpoint is already connected", counted: countReconnect},
		{name: "disconnect", goal: "127.0.0.1", length: 28, without: unchecked, want: secret, counted: countConnected},
		{name: "disconnect", goal: "::1", length: 28, hosts6: true, without: unchecked, want: secret, counted: countConnected},
		{name: "disconnect", goal: "fe80::1", length: 28, hosts6: true, without: unchecked, want: secret, counted: countConnected},
		{name: "listen", want: stopped, counted: countDisconnect},
		{name: "listen", without: without{Disconnect: true}, want: "listen: invalid argument", counted: countListen},
		{name: "listen", without: without{Disconnect: true, Listen: true}, want: "listens", counted: countConnected},
		{name: "fastopen", goal: "::1", hosts6: true, without: without{Disconnect: true}, want: "send: operation not supported", counted: countConnected},
		{name: "fastopen", goal: "::1", hosts6: true, without: without{Disconnect: true}, allowed: allowed{FastOpen: true}, want: secret, counted: countConnected},
		{name: "i386", goal: "::1", hosts6: true, want: "disconnect: function not implemented", counted: countConnected},
		{name: "i386", goal: "::1", hosts6: true, allowed: allowed{Foreign: true}, want: secret, counted: countConnected},
		{name: "rings", goal: "::1", hosts6: true, want: "ring: function not implemented", counted: countConnected},
		{name: "rings", goal: "::1", hosts6: true, allowed: allowed{Rings: true}, want: secret, counted: countConnected},
	} {
		name := fmt.Sprint(attack.name, attack.goal, attack.length, attack.hosts6, attack.without, attack.allowed)
		t.Run(strings.ReplaceAll(name, " ", ","), func(t *testing.T) {
			if attack.name == "i386" && runtime.GOARCH != "amd64" {
				t.Skip("needs i386")
			}
			l, client, server := pair(t, labConfig{without: attack.without, hostsIPv6: attack.hosts6})
			client.allowed = attack.allowed
			server.serve("serve", "5000", "v6", "hosts6")
			goal := ""
			if attack.goal != "" {
				goal = l.hosts[0].secretService(attack.goal)
				if at := netip.MustParseAddrPort(goal); at.Addr().Is4() {
					goal = fmt.Sprintf("[::ffff:%s]:%d", at.Addr(), at.Port())
				}
			}
			got := client.run(attack.name, server.at6(5000), goal, fmt.Sprint(attack.length))
			if got != attack.want {
				t.Errorf("the attack yields %q, not %q", got, attack.want)
			}
			client.counts(t, attack.counted, 1)
		})
	}
}

func TestPodCannotTakeForeignConnectionByIPv6(t *testing.T) {
	for _, check := range []bool{true, false} {
		t.Run(fmt.Sprintf("check=%v", check), func(t *testing.T) {
			l, client, server := pair(t, labConfig{without: without{Namespace: !check}})
			server.serve("deaf", "5000", "v6")
			client.serve("slurp", server.at6(5000))
			bell := server.run("bellport", "5000", "v6")
			attacker := l.hosts[1].addPod(66)
			want := map[bool]string{true: "own connection", false: "a secret"}[check]
			if got := attacker.run("hijack", server.ipv6.String(), "5000", bell); got != want {
				t.Errorf("the attack yields %q, not %q", got, want)
			}
		})
	}
}

// TestNodeMayOnlySendFromItsPodsByIPv6 also tries sources and targets of different
// families.
func TestNodeMayOnlySendFromItsPodsByIPv6(t *testing.T) {
	key := []byte("a key for tests that no job has.")
	four, ipv6, target := netip.MustParseAddrPort("10.42.0.10:4711"), netip.MustParseAddrPort("[fd42::10]:4711"), netip.MustParseAddrPort("[fd42:0:0:1::20]:5000")
	for name, c := range map[string]struct {
		source, target netip.AddrPort
		reaches        bool
	}{
		"as it should be":              {ipv6, target, true},
		"a pod that is not the node's": {netip.MustParseAddrPort("[fd42:0:0:1::99]:1"), target, false},
		"to another node's pod":        {ipv6, ipv6, false},
		"from an address of IPv4":      {four, target, false},
		"to an address of IPv4":        {ipv6, netip.MustParseAddrPort("10.42.1.20:5000"), false},
		"from the loopback":            {netip.MustParseAddrPort("[::1]:1"), target, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, server := pair(t, labConfig{})
			serving := server.serve("serve", "5000", "v6")
			conn, v, err := l.ask(t, key, preamble{from: 0, to: 1, source: c.source, target: c.target})
			if reaches := err == nil && v == verdictConnected; reaches != c.reaches {
				t.Fatalf("reaches the pod: %v (%d, %v)", reaches, v, err)
			}
			if !c.reaches {
				server.counts(t, countForged, 1)
				serving.kill()
				return
			}
			conn.Close()
			serving.wait()
		})
	}
}
