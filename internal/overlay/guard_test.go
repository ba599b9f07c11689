package overlay

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"berth.dev/berth/internal/linux"
)

// datagramOf is a UDP packet between two nodes, as an overlay sends it.
func datagramOf(t testing.TB, from, to int, source, destination netip.AddrPort) []byte {
	t.Helper()
	packet := make([]byte, minIPv4Header+8)
	packet[0], packet[8], packet[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
	copy(packet[12:], source.Addr().AsSlice())
	copy(packet[16:], destination.Addr().AsSlice())
	binary.BigEndian.PutUint16(packet[10:], ^fold(sum(packet[:minIPv4Header], 0)))
	binary.BigEndian.PutUint16(packet[20:], source.Port())
	binary.BigEndian.PutUint16(packet[22:], destination.Port())
	binary.BigEndian.PutUint16(packet[24:], 8)
	secret, err := newToken(testKey, from, to)
	if err != nil {
		t.Fatal(err)
	}
	datagram := append(secret[:], make([]byte, room-tokenLen+linux.VnetHeaderLen)...)
	return append(datagram, packet...)
}

// TestOnlyPeersAreHeard sends what is not to be delivered, and in the end what
// is. The socket on the node sees no other packet.
func TestOnlyPeersAreHeard(t *testing.T) {
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
	good := datagramOf(t, 1, 0, own, destination)
	changed := func(f func(datagram []byte)) []byte {
		datagram := append([]byte(nil), good...)
		f(datagram)
		return datagram
	}
	counters := func() Counters { return target.overlay.Counters() }
	for _, test := range []struct {
		what     string
		socket   int
		datagram []byte
		counter  func() uint64
	}{
		{"another port of the peer's host", 1, good, func() uint64 { return counters().Foreign }},
		{"another host", 2, good, func() uint64 { return counters().Foreign }},
		{"a wrong token", 0, changed(func(d []byte) { d[3] ^= 1 }), func() uint64 { return counters().Foreign }},
		{"the token of the other direction", 0, datagramOf(t, 0, 1, own, destination), func() uint64 { return counters().Foreign }},
		{"the token of another node", 0, datagramOf(t, 2, 0, own, destination), func() uint64 { return counters().Foreign }},
		{"less than a token", 0, good[:5], func() uint64 { return counters().Foreign }},
		{"another node's source", 0, datagramOf(t, 1, 0, netip.AddrPortFrom(l.members[2].nodeAddr, 1), destination), func() uint64 { return counters().Spoofed }},
		{"our own source", 0, datagramOf(t, 1, 0, netip.AddrPortFrom(target.nodeAddr, 1), destination), func() uint64 { return counters().Spoofed }},
		{"a source outside of the cluster", 0, datagramOf(t, 1, 0, netip.MustParseAddrPort("198.51.100.1:1"), destination), func() uint64 { return counters().Spoofed }},
		{"another node's destination", 0, datagramOf(t, 1, 0, own, netip.AddrPortFrom(l.members[2].nodeAddr, port)), func() uint64 { return counters().Stray }},
		{"a destination outside of the cluster", 0, datagramOf(t, 1, 0, own, netip.MustParseAddrPort("198.51.100.1:1")), func() uint64 { return counters().Stray }},
		{"no packet", 0, good[:wireLen], func() uint64 { return counters().Malformed }},
		{"no version", 0, changed(func(d []byte) { d[wireLen] = 0x15 }), func() uint64 { return counters().Malformed }},
		{"headers of a segment that are none", 0, changed(func(d []byte) { d[atHeaders] = 40 }), func() uint64 { return counters().Malformed }},
	} {
		t.Run(test.what, func(t *testing.T) {
			before := test.counter()
			if _, err := sockets[test.socket].WriteToUDPAddrPort(test.datagram, target.endpoints()[0]); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the datagram is counted", func() bool { return test.counter() == before+1 })
		})
	}
	if received := counters().ReceivedPackets; received != 0 {
		t.Errorf("%d packets were delivered that should not be", received)
	}
	// The control: the same datagram, from where it should come.
	if _, err := sockets[0].WriteToUDPAddrPort(good, target.endpoints()[0]); err != nil {
		t.Fatal(err)
	}
	_, from, err := listener.ReadFrom(make([]byte, 10))
	if err != nil || from.(*net.UDPAddr).AddrPort() != own {
		t.Errorf("the peer's packet came from %v (%v), want %v", from, err, own)
	}
}

func TestPeerMayComeBackElsewhere(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500}, offloads: true})
	a, b := l.members[0], l.members[1]
	ping(t, a, b.nodeAddr)
	b.stop(t)
	for i := range b.tuns {
		b.conns[i].Close()
		b.tuns[i].Close()
	}
	b.tuns, b.conns = nil, nil
	b.node = newNamespace(t)
	b.setUpNode(t, 1, false)
	l.nodes[1].Endpoints = b.endpoints()
	b.start(t, 1, l.nodes)
	if err := a.overlay.SetNodes(l.nodes); err != nil {
		t.Fatal(err)
	}
	ping(t, a, b.nodeAddr)
	sendTCP(t, b, a.serveTCP(t, a.nodeAddr), noise(100_000))
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
		if _, err := newTable(testKey, 0, test.nodes, false); err == nil {
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
	table, err := newTable(testKey, 0, nodes, true)
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
