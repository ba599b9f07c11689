package overlay

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"berth.dev/berth/internal/testutil"
)

// packetOf returns an empty UDP packet between two nodes, in a datagram without a
// tag.
func packetOf(source, destination netip.AddrPort) []byte {
	packet := make([]byte, minIPv4Header+8)
	packet[0], packet[8], packet[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	copy(packet[12:], source.Addr().AsSlice())
	copy(packet[16:], destination.Addr().AsSlice())
	binary.BigEndian.PutUint16(packet[10:], ^fold(sum(packet[:minIPv4Header], 0)))
	binary.BigEndian.PutUint16(packet[20:], source.Port())
	binary.BigEndian.PutUint16(packet[22:], destination.Port())
	binary.BigEndian.PutUint16(packet[24:], 8)
	return append(make([]byte, wireLen), packet...)
}

// impostor sends to a node in another node's name.
type impostor struct {
	testing.TB
	conn       *net.UDPConn
	self, to   int
	target     netip.AddrPort
	generation uint64
	hello      []byte
	session    *session
}

// agree sends hellos until an answer arrives.
func (i *impostor) agree() {
	i.Helper()
	asking, _ := controlKey(testKey, i.self, i.to)
	awaited, _ := controlKey(testKey, i.to, i.self)
	own := newNonce()
	i.generation++
	i.hello = make([]byte, minDatagram)
	control{kind: kindHello, generation: i.generation, nonce: own, from: uint32(i.self)}.encode(asking, i.hello)
	answer := make([]byte, maxPacket)
	for range 200 {
		i.conn.WriteToUDPAddrPort(i.hello, i.target)
		i.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		n, _, err := i.conn.ReadFromUDPAddrPort(answer)
		if err != nil || n < controlLen || !isControl(answer[:n]) || !isProven(awaited, answer[:n]) {
			continue
		}
		c, _ := decodeControl(answer[:n])
		switch {
		case c.kind != kindAnswer || c.nonce != own:
		case c.generation > i.generation:
			i.generation = c.generation
			i.agree()
			return
		default:
			var err error
			if i.session, err = newSession(testKey, purposeOf("datagrams", i.self, i.to, i.generation, own, c.instance)); err != nil {
				i.Fatal(err)
			}
			return
		}
	}
	i.Fatal("no answer to a hello")
}

// seal returns a datagram with the next number and its tag.
func (i *impostor) seal(datagram []byte) []byte {
	sealed := append([]byte(nil), datagram...)
	i.session.seal(sealed[:covered(sealed)], len(sealed))
	return sealed
}

// TestDatagramsFromOthersAreDropped sends datagrams that must not be delivered, and at the end
// one that must. A capture on the node's device sees no other packet.
func TestDatagramsFromOthersAreDropped(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500, 1500}, offloads: true})
	target, peer := l.members[0], l.members[1]
	peer.stop(t) // the test sends from its socket
	var listener net.PacketConn
	target.node.try(t, func() (err error) {
		listener, err = net.ListenPacket("udp4", netip.AddrPortFrom(target.nodeAddr, 0).String())
		return err
	})
	defer listener.Close()
	port := listener.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	destination := netip.AddrPortFrom(target.nodeAddr, port)
	delivered := target.capture(t)
	own := netip.AddrPortFrom(peer.nodeAddr, 1)
	var sockets [3]*net.UDPConn // of the peer's host, at another port, and of another host
	for i, host := range []*member{peer, l.members[2]} {
		host.host.try(t, func() (err error) {
			sockets[i+1], err = net.ListenUDP("udp4", &net.UDPAddr{IP: host.hostAddr.AsSlice()})
			return err
		})
		defer sockets[i+1].Close()
	}
	peer.host.try(t, func() (err error) {
		address := net.UDPAddrFromAddrPort(peer.endpoints()[0])
		peer.conns[0].Close()
		sockets[0], err = net.ListenUDP("udp4", address)
		return err
	})
	defer sockets[0].Close()
	at := target.endpoints()[0]
	before := target.overlay.Counters()
	as := &impostor{TB: t, conn: sockets[0], self: 1, to: 0, target: at}
	as.agree()
	old := as.seal(packetOf(own, destination))
	as.agree() // a later generation: what was sealed before is worth nothing
	good := packetOf(own, destination)
	sealed := as.seal(good)
	changed := func(f func(datagram []byte)) []byte {
		datagram := append([]byte(nil), good...)
		f(datagram)
		return datagram
	}
	counters := func() Counters { return target.overlay.Counters() }
	foreign := func() uint64 { return counters().Foreign }
	spoofed := func() uint64 { return counters().Spoofed }
	stray := func() uint64 { return counters().Stray }
	malformed := func() uint64 { return counters().Malformed }
	otherHello := append([]byte(nil), as.hello...)
	otherHello[len(otherHello)-1], otherHello[macLen+3] = 1, 1
	wrongTag := append([]byte(nil), sealed...)
	wrongTag[3] ^= 1
	readdressed := append([]byte(nil), sealed...)
	readdressed[wireLen+19] ^= 1
	longer := append(append([]byte(nil), sealed...), 0)
	for _, test := range []struct {
		what     string
		socket   int
		datagram []byte
		counter  func() uint64
	}{
		{"sent on from another port of the peer's host", 1, sealed, foreign},
		{"sent on by another host", 2, sealed, foreign},
		{"a hello sent on by another host", 2, as.hello, foreign},
		{"a hello with another generation", 0, otherHello, foreign},
		{"a wrong tag", 0, wrongTag, foreign},
		{"another destination", 0, readdressed, foreign},
		{"another length", 0, longer, foreign},
		{"no tag", 0, good, foreign},
		{"of an earlier session", 0, old, foreign},
		{"less than a wire header", 0, good[:5], foreign},
		{"another node's source", 0, as.seal(packetOf(netip.AddrPortFrom(l.members[2].nodeAddr, 1), destination)), spoofed},
		{"our own source", 0, as.seal(packetOf(netip.AddrPortFrom(target.nodeAddr, 1), destination)), spoofed},
		{"a source outside of the cluster", 0, as.seal(packetOf(netip.MustParseAddrPort("198.51.100.1:1"), destination)), spoofed},
		{"another node's destination", 0, as.seal(packetOf(own, netip.AddrPortFrom(l.members[2].nodeAddr, port))), stray},
		{"a destination outside of the cluster", 0, as.seal(packetOf(own, netip.MustParseAddrPort("198.51.100.1:1"))), stray},
		{"no packet", 0, as.seal(good[:wireLen]), malformed},
		{"no version", 0, as.seal(changed(func(d []byte) { d[wireLen] = 0x15 })), malformed},
		{"headers of a segment that are none", 0, as.seal(changed(func(d []byte) { d[atHeaders] = 40 })), malformed},
		{"an empty fragment", 0, as.seal(changed(func(d []byte) { d[atFlags] = flagFragment })[:wireLen]), malformed},
	} {
		t.Run(test.what, func(t *testing.T) {
			before := test.counter()
			if _, err := sockets[test.socket].WriteToUDPAddrPort(test.datagram, at); err != nil {
				t.Fatal(err)
			}
			testutil.Eventually(t, "the datagram is counted", func() bool { return test.counter() == before+1 })
		})
	}
	if received := counters().ReceivedPackets; received != before.ReceivedPackets {
		t.Errorf("%d packets were delivered that should not be", received-before.ReceivedPackets)
	}
	if others := delivered.sources(t); len(others) > 0 {
		t.Errorf("packets were delivered from %v", others)
	}
	// Control: the same datagram from the right address, once.
	receive := func() {
		t.Helper()
		defer func() {
			if from := delivered.sources(t); !slices.Equal(from, []netip.Addr{own.Addr()}) {
				t.Errorf("packets were delivered from %v, want one of %v", from, own.Addr())
			}
		}()
		listener.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, from, err := listener.ReadFrom(make([]byte, 10))
		if err != nil || from.(*net.UDPAddr).AddrPort() != own {
			t.Errorf("the peer's packet came from %v (%v), want %v", from, err, own)
		}
	}
	sockets[0].WriteToUDPAddrPort(sealed, at)
	receive()
	for i, again := range [][]byte{sealed, as.hello, sealed} {
		replayed := counters().Replayed
		sockets[0].WriteToUDPAddrPort(again, at)
		if i != 1 {
			testutil.Eventually(t, "the replayed datagram is counted", func() bool { return counters().Replayed == replayed+1 })
		}
	}
	if again := delivered.sources(t); len(again) > 0 {
		t.Errorf("packets were delivered again from %v", again)
	}
	// A datagram from before the receiver's restart is invalid, even after a
	// replay of the hello from before.
	target.stop(t)
	target.start(t, 0, l.nodes)
	sockets[0].WriteToUDPAddrPort(as.hello, at)
	sockets[0].WriteToUDPAddrPort(sealed, at)
	testutil.Eventually(t, "a datagram from before is counted", func() bool { return counters().Foreign > 0 })
	as.agree()
	sockets[0].WriteToUDPAddrPort(as.seal(good), at)
	receive()
	testutil.Eventually(t, "the packet is counted", func() bool { return counters().ReceivedPackets > 0 })
	if received := counters().ReceivedPackets; received != 1 {
		t.Errorf("%d packets were delivered after the start, want 1", received)
	}
}

// TestPeerMayReconnect restarts a node at its old address with the same sockets, as
// after a cut or a crash of the overlay. Nodes that go on sending to it establish a
// new session by themselves.
func TestPeerMayReconnect(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 2})
	a, b := l.members[0], l.members[1]
	ping(t, a, b.nodeAddr)
	for _, first := range []*member{a, b} {
		b.stop(t)
		b.start(t, 1, l.nodes)
		l.awaitPaths()
		other := a
		if first == a {
			other = b
		}
		// With TCP: a packet sealed with forgotten keys is lost, and makes both
		// sides establish a new session.
		sendTCP(t, first, other.serveTCP(t, other.nodeAddr), noise(1_000_000))
		ping(t, other, first.nodeAddr)
	}
}

func TestNodesMustNotOverlap(t *testing.T) {
	prefix := netip.MustParsePrefix("10.42.0.0/24")
	endpoint := netip.MustParseAddrPort("192.0.2.1:1")
	for _, test := range []struct {
		name  string
		nodes []Node
	}{
		{"one prefix twice", []Node{{Name: "a", Prefixes: []netip.Prefix{prefix}}, {Name: "b", Prefixes: []netip.Prefix{prefix}}}},
		{"bits beyond the prefix", []Node{{Name: "a", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.42.0.1/24")}}}},
		{"one endpoint twice", []Node{{Name: "a"}, {Name: "b", Endpoints: []netip.AddrPort{endpoint}}, {Name: "c", Endpoints: []netip.AddrPort{endpoint}}}},
		{"no port", []Node{{Name: "a"}, {Name: "b", Endpoints: []netip.AddrPort{netip.AddrPortFrom(endpoint.Addr(), 0)}}}},
		{"IPv6 from an IPv4 socket", []Node{{Name: "a"}, {Name: "b", Endpoints: []netip.AddrPort{netip.MustParseAddrPort("[2001:db8::1]:1")}}}},
	} {
		if _, err := newTable(testKey, 0, test.nodes, false, 1); err == nil {
			t.Errorf("%s: no error", test.name)
		}
	}
}

func TestLongestPrefixWins(t *testing.T) {
	nodes := []Node{
		{Name: "a", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}},
		{Name: "b", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd01::/16")}},
		{Name: "c", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("fd01::3/128")}},
	}
	table, err := newTable(testKey, 0, nodes, true, 1)
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]int{
		"10.9.9.9": 0, "10.1.9.9": 1, "10.1.2.3": 2, "11.0.0.1": nobody,
		"fd09::1": 0, "fd01::1": 1, "fd01::3": 2, "fe80::1": nobody,
	} {
		parsed := netip.MustParseAddr(address)
		find := table.find6
		if parsed.Is4() {
			find = table.find4
		}
		if got := find(parsed.AsSlice()); got != want {
			t.Errorf("%s belongs to node %d, want %d", address, got, want)
		}
	}
}

// TestEndOfTheDevice removes a device, which ends its overlay with an error and
// leaves the other overlays running.
func TestEndOfTheDevice(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 2})
	gone := l.members[1]
	gone.node.try(t, func() error {
		link, err := netlink.LinkByName("mesh0")
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
	select {
	case <-gone.done:
	case <-time.After(20 * time.Second):
		t.Fatal("the overlay goes on without its device")
	}
	if !errors.Is(gone.err, errDeviceGone) {
		t.Errorf("the overlay ended with %v, want %v", gone.err, errDeviceGone)
	}
	gone.err = nil
}

func TestMulticastIsDropped(t *testing.T) {
	for to, want := range map[string]bool{"10.1.2.3": false, "224.0.0.1": true, "255.255.255.255": true, "fd00::1": false, "ff02::2": true} {
		address := netip.MustParseAddr(to)
		packet := make([]byte, ipv6Header)
		if packet[0] = 0x60; address.Is4() {
			packet[0] = 0x45
			copy(packet[16:], address.AsSlice())
		} else {
			copy(packet[24:], address.AsSlice())
		}
		if isMulticast(packet) != want {
			t.Errorf("%s: %v", to, !want)
		}
	}
}
