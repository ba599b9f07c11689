package fastpath

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// pair returns a lab with a pod on each host.
func pair(t *testing.T, config labConfig) (l *lab, client, server *labPod) {
	t.Helper()
	l = newLab(t, config)
	return l, l.hosts[0].addPod(10), l.hosts[1].addPod(20)
}

// expect checks the description of a connection.
func expect(t *testing.T, text string, local, peer netip.Addr, network string) {
	t.Helper()
	words := strings.Fields(text)
	if len(words) != 3 {
		t.Fatalf("connection %q", text)
	}
	for i, want := range []netip.Addr{local, peer} {
		if got := netip.MustParseAddrPort(words[i]).Addr().Unmap(); got != want {
			t.Errorf("connection %q: address %d is not %s", text, i, want)
		}
	}
	if words[2] != network {
		t.Errorf("connection %q: not %s", text, network)
	}
}

func TestAllClientsAndServersAreSwitched(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	clients := []string{
		"", "nonblock poll", "nonblock select", "nonblock epoll", "nonblock epoll edge", "nonblock epoll before",
		"nonblock epoll before edge", "epoll before", "v6", "v6 nonblock epoll before", "bind=4711",
	}
	servers := []string{
		"", "accept", "nonblock poll", "nonblock select", "nonblock epoll", "nonblock epoll edge", "v6", "v6 nonblock epoll", "poll", "epoll",
	}
	port := 5000
	for _, s := range servers {
		for _, c := range clients {
			if s != "" && c != "" && c != "nonblock epoll before edge" && c != "v6" {
				continue
			}
			t.Run(fmt.Sprintf("server(%s)client(%s)", s, c), func(t *testing.T) {
				port++
				serving := server.serve("serve", append([]string{fmt.Sprint(port)}, strings.Fields(s)...)...)
				asked := client.run("ask", append([]string{server.at(port)}, strings.Fields(c)...)...)
				expect(t, asked, client.address, server.address, "switched")
				served := serving.wait()
				expect(t, served, server.address, client.address, "switched")
				a, b := strings.Fields(asked), strings.Fields(served)
				for i, word := range a[:2] {
					if plain := netip.MustParseAddrPort(word); plain.Port() != netip.MustParseAddrPort(b[1-i]).Port() {
						t.Errorf("the client says %q, the server %q", asked, served)
					}
				}
				if strings.Contains(c, "bind=") && !strings.HasSuffix(a[0], ":4711") {
					t.Errorf("bound to port 4711: %q", asked)
				}
			})
		}
	}
}

// TestNothingStaysOpen: what a program closes after a call is closed.
func TestNothingStaysOpen(t *testing.T) {
	_, _, server := pair(t, labConfig{})
	if said := server.run("relisten", server.at(5000), "2000"); said != "done" {
		t.Error(said)
	}
}

func TestGoPrograms(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	const n = 50
	serving := server.serve("goserve", "5000", fmt.Sprint(n))
	client.run("goask", server.at(5000), fmt.Sprint(n))
	serving.wait()
	client.counts(t, countConnected, n)
	server.counts(t, countAccepted, n)
}

// counts checks a counter of the Switch of a pod's host.
func (p *labPod) counts(t *testing.T, what count, want uint64) {
	t.Helper()
	if all := p.host.counters(); all[countNames[what]] != want {
		t.Errorf("host %d: %q is not %d: %v", p.host.index, countNames[what], want, all)
	}
}

func TestUncertainConnectionsStayOnOverlay(t *testing.T) {
	l, client, server := pair(t, labConfig{denied: []string{"10.42.1.20:5001"}})
	t.Run("a policy does not permit it", func(t *testing.T) {
		serving := server.serve("serve", "5001")
		expect(t, client.run("ask", server.at(5001), "nonblock", "epoll", "before"), client.address, server.address, "overlay")
		expect(t, serving.wait(), server.address, client.address, "overlay")
		client.counts(t, countPolicy, 1)
	})
	t.Run("the server has no filter", func(t *testing.T) {
		plain := l.hosts[1].addPod(21)
		plain.plain = true
		serving := plain.serve("serve", "5000")
		expect(t, client.run("ask", plain.at(5000)), client.address, plain.address, "overlay")
		serving.wait()
		client.counts(t, countPeerOverlay, 1)
	})
	t.Run("the client has no filter", func(t *testing.T) {
		plain := l.hosts[0].addPod(11)
		plain.plain = true
		serving := server.serve("serve", "5000", "nonblock", "epoll")
		expect(t, plain.run("ask", server.at(5000)), plain.address, server.address, "overlay")
		expect(t, serving.wait(), server.address, plain.address, "overlay")
	})
	t.Run("a pod of the same node", func(t *testing.T) {
		neighbour := l.hosts[0].addPod(12)
		serving := neighbour.serve("serve", "5000", "epoll", "nonblock")
		expect(t, client.run("ask", neighbour.at(5000)), client.address, neighbour.address, "overlay")
		serving.wait()
	})
	t.Run("the pod itself", func(t *testing.T) {
		for _, address := range []string{"127.0.0.1:5000", server.at(5000)} {
			serving := server.serve("serve", "5000")
			server.run("ask", address, "nonblock", "epoll", "before")
			serving.wait()
		}
	})
	t.Run("a duplicate of the socket", func(t *testing.T) {
		serving := server.serve("serve", "5000")
		expect(t, client.run("duplicate", server.at(5000)), client.address, server.address, "overlay")
		serving.wait()
		client.counts(t, countDuplicated, 1)
	})
	t.Run("UDP", func(t *testing.T) {
		serving := server.serve("udpserve", "5000")
		client.run("udp", server.at(5000))
		serving.wait()
	})
	t.Run("bound to another address", func(t *testing.T) {
		client.run("boundelsewhere", server.at(5000))
		client.counts(t, countBound, 1)
	})
}

func TestRefusedAndUsedAgain(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	first := server.serve("serve", "5000") // the pod is known by its calls
	for _, mode := range []string{"", "nonblock"} {
		if got := client.run("refused", server.at(5999), mode); got != "connection refused" {
			t.Errorf("connect to a port without a listener (%s): %q", mode, got)
		}
	}
	client.counts(t, countNoListener, 2)
	expect(t, client.run("twice", server.at(5999), server.at(5000)), client.address, server.address, "switched")
	first.wait()
	if got := client.run("refused", l.hosts[1].addressOf(99)); got != "no route to host" {
		t.Errorf("connect to an address without a pod: %q", got)
	}
}

func (h *host) addressOf(pod int) string {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 42, byte(h.index), byte(pod)}), 5000).String()
}

func TestOneSideMayEndFirst(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	serving := server.serve("serve", "5000", "n=2")
	expect(t, client.run("half", server.at(5000)), client.address, server.address, "switched")
	expect(t, client.run("forked", server.at(5000), "after"), client.address, server.address, "switched")
	serving.wait()
}

func TestSocketSharedWithChildStaysOnOverlay(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	serving := server.serve("serve", "5000")
	expect(t, client.run("sharedbefore", server.at(5000)), client.address, server.address, "overlay")
	serving.wait()
	client.counts(t, countDuplicated, 1)
}

func TestInterruptedAcceptGetsItsConnection(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("old=%v", old), func(t *testing.T) {
			_, client, server := pair(t, labConfig{old: old})
			const n = 200
			serving := server.serve("interrupted", "5000", fmt.Sprintf("n=%d", n))
			asking := client.start("many", server.at(5000), fmt.Sprint(n))
			// The server's output is read meanwhile: where a user has many pipes, a new one
			// holds less than this.
			for _, text := range strings.Split(serving.wait(), "\n") {
				expect(t, text, server.address, client.address, "switched")
			}
			asking.wait()
			client.counts(t, countConnected, n)
		})
	}
}

func TestListenerOfKilledProgramIsClosed(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	for _, mode := range []string{"", "nonblock epoll"} {
		for range 3 {
			serving := server.serve("serve", append([]string{"5000", "n=2"}, strings.Fields(mode)...)...)
			client.run("ask", server.at(5000))
			serving.kill()
		}
	}
}

func TestUnacceptedConnectionIsResetWithListener(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	serving := server.serve("deaf", "5000")
	asking := client.serve("awaitreset", server.at(5000))
	serving.kill()
	asking.wait()
}

func TestLinux514(t *testing.T) {
	for _, old := range []bool{false, true} {
		t.Run(fmt.Sprintf("old=%v", old), func(t *testing.T) {
			_, client, server := pair(t, labConfig{old: old})
			const n = 10
			serving := server.serve("goserve", "5000", fmt.Sprint(n))
			client.run("goask", server.at(5000), fmt.Sprint(n))
			serving.wait()
			client.counts(t, countConnected, n)
			// The process has other descriptors than the thread, and only those
			// can be looked at before Linux 6.9.
			serving = server.serve("serve", "5001")
			got := client.run("owntable", server.at(5001))
			if old {
				if got != "operation not permitted" {
					t.Errorf("a thread that cannot be looked at gets %q", got)
				}
				client.counts(t, countUnseen, 1)
				serving.kill()
				return
			}
			expect(t, got, client.address, server.address, "switched")
			serving.wait()
		})
	}
}

func TestNewPolicyClosesConnections(t *testing.T) {
	const service = "10.96.0.7:80"
	for i, side := range []string{"the client's", "the server's"} {
		t.Run(side, func(t *testing.T) {
			l, client, server := pair(t, labConfig{services: map[string]Route{service: route(0, "10.42.1.20:5000")}})
			serving := server.serve("serve", "5000", "reset")
			other := server.serve("serve", "5001")
			cut := client.serve("awaitreset", service)
			stays := client.serve("slow", server.at(5001))
			if got := l.hosts[i].deny(server.at(5000)); got != "1 <nil>" {
				t.Errorf("cut %s, not one", got)
			}
			cut.wait()
			serving.wait()
			expect(t, stays.wait(), client.address, server.address, "switched")
			other.wait()
			if got := l.hosts[i].deny("10.42.1.20:1"); got != "0 <nil>" {
				t.Errorf("cut %s, not none", got)
			}
		})
	}
}
