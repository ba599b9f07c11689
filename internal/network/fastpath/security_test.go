package fastpath

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Each attack is tried against a Switch as it is, where it fails for the reason
// that is stated, and against one that lacks the check, where it succeeds.
func TestAttacksOfPods(t *testing.T) {
	const secret = "a secret"
	for _, attack := range []struct {
		name    string
		program []string // after the addresses
		without without
		allowed allowed
		want    string
		counted count
	}{
		{name: "disconnect", program: []string{"16"}, want: "disconnect: operation not supported", counted: countDisconnect},
		{name: "disconnect", program: []string{"2"}, want: "disconnect: operation not supported", counted: countDisconnect},
		{name: "disconnect", program: []string{"128"}, want: "disconnect: operation not supported", counted: countDisconnect},
		{name: "disconnect", program: []string{"16"}, without: without{Disconnect: true}, want: "connect: transport endpoint is already connected", counted: countReconnect},
		{name: "disconnect", program: []string{"28"}, without: without{Disconnect: true}, want: "connect: transport endpoint is already connected", counted: countReconnect},
		{name: "disconnect", program: []string{"2"}, without: without{Disconnect: true, Reconnect: true}, want: secret, counted: countConnected},
		{name: "listen", want: "disconnect: operation not supported", counted: countDisconnect},
		{name: "listen", without: without{Disconnect: true}, want: "listen: invalid argument", counted: countListen},
		{name: "listen", without: without{Disconnect: true, Listen: true}, want: "listens", counted: countConnected},
		{name: "fastopen", without: without{Disconnect: true}, want: "send: operation not supported", counted: countConnected},
		{name: "fastopen", without: without{Disconnect: true}, allowed: allowed{FastOpen: true}, want: secret, counted: countConnected},
		{name: "i386", want: "disconnect: function not implemented", counted: countConnected},
		{name: "i386", allowed: allowed{Foreign: true}, want: secret, counted: countConnected},
		{name: "rings", want: "ring: function not implemented", counted: countConnected},
		{name: "rings", allowed: allowed{Rings: true}, want: secret, counted: countConnected},
	} {
		name := fmt.Sprint(attack.name, attack.program, attack.without, attack.allowed)
		t.Run(strings.ReplaceAll(name, " ", ","), func(t *testing.T) {
			if attack.name == "i386" && runtime.GOARCH != "amd64" {
				t.Skip("needs i386")
			}
			l, client, server := pair(t, labConfig{without: attack.without})
			client.allowed = attack.allowed
			server.serve("serve", "5000")
			target := l.hosts[0].secretService("127.0.0.1")
			got := client.run(attack.name, append([]string{server.at(5000), target}, attack.program...)...)
			if got != attack.want {
				t.Errorf("the attack yields %q, not %q", got, attack.want)
			}
			client.counts(t, attack.counted, 1)
		})
	}
}

// TestPodCannotTakeForeignConnection has a pod with capabilities over its own
// namespace pretend to be another one.
func TestPodCannotTakeForeignConnection(t *testing.T) {
	for _, check := range []bool{true, false} {
		t.Run(fmt.Sprintf("check=%v", check), func(t *testing.T) {
			l, client, server := pair(t, labConfig{without: without{Namespace: !check}})
			server.serve("deaf", "5000")
			client.serve("slurp", server.at(5000))
			bell := server.run("bellport", "5000")
			attacker := l.hosts[1].addPod(66)
			want := map[bool]string{true: "own connection", false: "a secret"}[check]
			if got := attacker.run("hijack", server.address.String(), "5000", bell); got != want {
				t.Errorf("the attack yields %q, not %q", got, want)
			}
		})
	}
}

// A filter that was registered for another network namespace gets no sockets of the host's.
func TestFilterHoldsOnlyForItsNamespace(t *testing.T) {
	_, client, server := pair(t, labConfig{})
	client.foreign = true
	serving := server.serve("serve", "5000")
	expect(t, client.run("ask", server.at(5000)), client.address, server.address, "overlay")
	expect(t, serving.wait(), server.address, client.address, "overlay")
	client.counts(t, countConnected, 0)
}

// ask connects to the Switch of a host from the other host, as any user
// there could, and asks for a connection.
func (l *lab) ask(t *testing.T, key []byte, p preamble) (net.Conn, verdict, error) {
	t.Helper()
	var conn net.Conn
	l.hosts[0].ns.try(t, func() (err error) {
		conn, err = net.Dial("tcp4", l.hosts[1].endpoints[0].String())
		return err
	})
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(labTimeout))
	if _, err := io.ReadFull(conn, p.challenge[:]); err != nil {
		t.Fatal(err)
	}
	pair, err := pairKey(key, p.from, p.to)
	if err != nil {
		t.Fatal(err)
	}
	b := p.encode(pair)
	if _, err := conn.Write(b[:]); err != nil {
		t.Fatal(err)
	}
	var answer [answerLen]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return conn, 0, err
	}
	return conn, verdict(answer[0]), nil
}

func TestOnlyNodesOfTheJobMayConnect(t *testing.T) {
	jobKey, otherKey := []byte("a key for tests that no job has."), []byte("a key of another job's, or a guess")
	source, target := netip.MustParseAddrPort("10.42.0.10:4711"), netip.MustParseAddrPort("10.42.1.20:5000")
	for _, attack := range []struct {
		name     string
		key      []byte
		preamble preamble
		without  without
		reaches  bool
	}{
		{"another job's key", otherKey, preamble{from: 0, to: 1, source: source, target: target}, without{}, false},
		{"another job's key, unchecked", otherKey, preamble{from: 0, to: 1, source: source, target: target}, without{Seal: true}, true},
		{"a pod that is not the node's", jobKey, preamble{from: 0, to: 1, source: netip.MustParseAddrPort("10.42.1.99:1"), target: target}, without{}, false},
		{"a pod that is not the node's, unchecked", jobKey, preamble{from: 0, to: 1, source: netip.MustParseAddrPort("10.42.1.99:1"), target: target}, without{Source: true}, true},
		{"for another node", jobKey, preamble{from: 0, to: 0, source: source, target: target}, without{}, false},
		{"to another node's pod", jobKey, preamble{from: 0, to: 1, source: source, target: source}, without{}, false},
		{"from a node that is none", jobKey, preamble{from: 7, to: 1, source: source, target: target}, without{Seal: true}, false},
		{"as it should be", jobKey, preamble{from: 0, to: 1, source: source, target: target}, without{}, true},
	} {
		t.Run(attack.name, func(t *testing.T) {
			l, _, server := pair(t, labConfig{without: attack.without})
			serving := server.serve("serve", "5000")
			conn, v, err := l.ask(t, attack.key, attack.preamble)
			if reaches := err == nil && v == verdictConnected; reaches != attack.reaches {
				t.Fatalf("reaches the pod: %v (%d, %v)", reaches, v, err)
			}
			if !attack.reaches {
				server.counts(t, countForged, 1)
				serving.kill()
				return
			}
			conn.Close()
			serving.wait()
		})
	}
}

// TestImpostorIsRejected has somebody else listen where a node did.
func TestImpostorIsRejected(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	impostor := l.hosts[1]
	impostor.kill()
	var listener net.Listener
	l.hosts[0].ns.try(t, func() (err error) {
		listener, err = net.Listen("tcp4", "192.0.2.1:0")
		return err
	})
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		conn.Write(make([]byte, challengeLen))
		io.ReadFull(conn, make([]byte, preambleLen))
		conn.Write(append([]byte{byte(verdictConnected)}, make([]byte, sealLen)...))
		io.Copy(io.Discard, conn)
	}()
	endpoints := impostor.endpoints
	impostor.endpoints = []netip.AddrPort{listener.Addr().(*net.TCPAddr).AddrPort()}
	l.hosts[0].kill()
	l.hosts[0].startSwitch()
	impostor.endpoints = endpoints
	impostor.startSwitch()
	serving := server.serve("serve", "5000")
	expect(t, client.run("ask", server.at(5000)), client.address, server.address, "overlay")
	serving.wait()
	client.counts(t, countForged, 1)
}
