package overlay

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil/fuzzbound"
)

// shelf is a device that keeps the packets it receives.
type shelf struct{ frames [][]byte }

func (s *shelf) write(vector []unix.Iovec) error {
	s.frames = append(s.frames, join(vector))
	return nil
}

func join(vector []unix.Iovec) []byte {
	var joined []byte
	for _, v := range vector {
		joined = append(joined, unsafe.Slice(v.Base, v.Len)...)
	}
	return joined
}

// superPacket returns a frame of a device: a TCP packet from node 0 to node 1.
func superPacket(ipv6 bool, size int, payload []byte) []byte {
	start := minIPv4Header
	if ipv6 {
		start = ipv6Header
	}
	frame := make([]byte, linux.VnetHeaderLen+start+32)
	frame[vnetFlags], frame[vnetGSOType] = needsChecksum, gsoTCP4
	binary.NativeEndian.PutUint16(frame[vnetGSOSize:], uint16(size))
	binary.NativeEndian.PutUint16(frame[vnetSumStart:], uint16(start))
	binary.NativeEndian.PutUint16(frame[vnetSumOffset:], tcpSumOffset)
	packet := frame[linux.VnetHeaderLen:]
	if ipv6 {
		frame[vnetGSOType] = gsoTCP6
		packet[0], packet[6], packet[7] = 0x60, protocolTCP, 64
		binary.BigEndian.PutUint16(packet[4:], uint16(32+len(payload)))
		copy(packet[8:], netip.MustParseAddr("fd42::1").AsSlice())
		copy(packet[24:], netip.MustParseAddr("fd42:1::1").AsSlice())
	} else {
		packet[0], packet[8], packet[9] = 0x45, 64, protocolTCP
		binary.BigEndian.PutUint16(packet[2:], uint16(start+32+len(payload)))
		copy(packet[12:], netip.MustParseAddr("10.42.0.1").AsSlice())
		copy(packet[16:], netip.MustParseAddr("10.42.1.1").AsSlice())
		binary.BigEndian.PutUint16(packet[10:], ^fold(sum(packet[:start], 0)))
	}
	tcp := packet[start:]
	binary.BigEndian.PutUint32(tcp[4:], 1000)
	tcp[12], tcp[tcpFlagsOffset] = 0x80, 0x10|tcpPSH|tcpFIN
	addresses := packet[12:20]
	if ipv6 {
		addresses = packet[8:40]
	}
	binary.BigEndian.PutUint16(tcp[tcpSumOffset:], fold(sum(addresses, protocolTCP)+uint32(32+len(payload))))
	return append(frame, payload...)
}

// superDatagram returns a frame with several UDP packets.
func superDatagram(ipv6 bool, size int, payload []byte) []byte {
	tcp := superPacket(ipv6, size, nil)
	start := len(tcp) - 32
	frame := append(tcp[:start+udpHeader:start+udpHeader], payload...)
	frame[vnetGSOType] = gsoUDP
	binary.NativeEndian.PutUint16(frame[vnetSumOffset:], udpSumOffset)
	packet := frame[linux.VnetHeaderLen:]
	udp := frame[start:]
	addresses := packet[8:40]
	if ipv6 {
		packet[6] = protocolUDP
		binary.BigEndian.PutUint16(packet[4:], uint16(len(udp)))
	} else {
		packet[9] = protocolUDP
		binary.BigEndian.PutUint16(packet[2:], uint16(len(packet)))
		binary.BigEndian.PutUint16(packet[10:], 0)
		binary.BigEndian.PutUint16(packet[10:], ^fold(sum(packet[:minIPv4Header], 0)))
		addresses = packet[12:20]
	}
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[udpSumOffset:], fold(sum(addresses, protocolUDP)+uint32(len(udp))))
	return frame
}

func TestCoalesceRestoresDatagrams(t *testing.T) {
	sender, receiver := twoNodes(t)
	for _, ipv6 := range []bool{false, true} {
		for _, length := range []int{1401, 2800, 30000} {
			frame := superDatagram(ipv6, 1400, noise(length))
			datagrams := datagramsOf(t, sender, frame)
			if want := (length + 1399) / 1400; len(datagrams) != want {
				t.Errorf("%d bytes are cut into %d datagrams, want %d", length, len(datagrams), want)
			}
			frames, _ := coalesced(t, receiver, datagrams)
			binary.NativeEndian.PutUint16(frame[vnetHeaders:], uint16(len(frame)-linux.VnetHeaderLen-length))
			if len(frames) != 1 || !bytes.Equal(frames[0], frame) {
				t.Errorf("IPv6 %v, %d bytes: another packet came out (%d)", ipv6, length, len(frames))
			}
			// One that is lost makes two.
			if length < 30000 {
				continue
			}
			frames, _ = coalesced(t, receiver, slices.Delete(slices.Clone(datagrams), 5, 6))
			if len(frames) != 2 {
				t.Errorf("IPv6 %v: %d packets came out without one datagram, want 2", ipv6, len(frames))
			}
		}
		// A datagram that is too large for the path is not made smaller.
		large := superDatagram(ipv6, 2000, noise(9000))
		frames, _ := coalesced(t, receiver, datagramsOf(t, sender, large))
		if len(frames) != 1 || !bytes.Equal(frames[0][linux.VnetHeaderLen:], large[linux.VnetHeaderLen:]) {
			t.Errorf("IPv6 %v: what is too large for the path does not arrive as it was (%d)", ipv6, len(frames))
		}
	}
}

func twoNodes(t testing.TB) (sender, receiver *table) {
	t.Helper()
	nodes := []Node{
		{Name: "a", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.42.0.0/24"), netip.MustParsePrefix("fd42::/32")}, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:1")}},
		{Name: "b", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.42.1.0/24"), netip.MustParsePrefix("fd42:1::/32")}, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:2")}},
	}
	var err error
	if sender, err = newTable(testKey, 0, nodes, false, 1); err == nil {
		receiver, err = newTable(testKey, 1, nodes, false, 1)
	}
	if err != nil {
		t.Fatal(err)
	}
	agreed(t, sender, 1400+wireLen+100)
	return sender, receiver
}

// agreed gives the sender's path to node 1 a session, and returns the receiver's
// side.
func agreed(t testing.TB, sender *table, limit int) *receiving {
	t.Helper()
	there, err := newSession(testKey, "a test")
	if err != nil {
		t.Fatal(err)
	}
	here, _ := newSession(testKey, "a test")
	sender.peers[1].paths[0].sending.Store(&sending{session: there, limit: limit})
	return &receiving{session: here}
}

func testSender(known *table) *udpSender {
	return newUDPSender(&queue{table: held(known), counts: new(counts), log: slog.New(slog.DiscardHandler)})
}

// datagramsOf segments a frame as the sender does.
func datagramsOf(t testing.TB, known *table, frame []byte) [][]byte {
	t.Helper()
	s := testSender(known)
	s.send(known.peers[1], append(make([]byte, headroom), frame...))
	var datagrams [][]byte
	for i := range s.n {
		s.prepare(i, s.n)
		vector := unsafe.Slice(s.messages[i].Iov, s.messages[i].Iovlen)
		for joined := join(vector); len(joined) > 0; {
			size := min(s.batches[i].size, len(joined))
			datagrams = append(datagrams, joined[:size])
			joined = joined[size:]
		}
	}
	return datagrams
}

// held returns a pointer to a table, as an overlay has it.
func held(t *table) *atomic.Pointer[table] {
	var pointer atomic.Pointer[table]
	pointer.Store(t)
	return &pointer
}

func coalesced(t testing.TB, receiver *table, datagrams [][]byte) ([][]byte, *counts) {
	t.Helper()
	out, counts := new(shelf), new(counts)
	g := newCoalescer(out, counts)
	g.table = held(receiver)
	from := &source{peer: receiver.peers[0]}
	for _, datagram := range datagrams {
		if len(datagram) < wireLen {
			continue
		}
		number := uint64(binary.BigEndian.Uint32(datagram[atNumber:]))
		if err := g.add(from, number, datagram); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.flush(); err != nil {
		t.Fatal(err)
	}
	return out.frames, counts
}

func TestCoalesceRestoresPacket(t *testing.T) {
	sender, receiver := twoNodes(t)
	for _, ipv6 := range []bool{false, true} {
		for _, length := range []int{1400, 1401, 2800, 30000, 65000} {
			frame := superPacket(ipv6, 1400, noise(length))
			datagrams := datagramsOf(t, sender, frame)
			if want := (length + 1399) / 1400; len(datagrams) != want {
				t.Errorf("%d bytes are cut into %d datagrams, want %d", length, len(datagrams), want)
			}
			frames, _ := coalesced(t, receiver, datagrams)
			binary.NativeEndian.PutUint16(frame[vnetHeaders:], uint16(len(frame)-linux.VnetHeaderLen-length))
			if length <= 1400 {
				// Nothing is left to be cut.
				frame[vnetGSOType] = gsoNone
				binary.NativeEndian.PutUint16(frame[vnetGSOSize:], 0)
			}
			if len(frames) != 1 || !bytes.Equal(frames[0], frame) {
				t.Errorf("IPv6 %v, %d bytes: another packet came out (%d)", ipv6, length, len(frames))
			}
		}
	}
}

// TestSegmentsThatArriveAreDelivered loses and swaps datagrams. Each payload
// byte that arrives must be delivered, in a packet with its sequence number.
func TestSegmentsThatArriveAreDelivered(t *testing.T) {
	sender, receiver := twoNodes(t)
	for _, ipv6 := range []bool{false, true} {
		payload := noise(20 * 1000)
		datagrams := datagramsOf(t, sender, superPacket(ipv6, 1000, payload))
		order := []int{0, 1, 2, 4, 5, 7, 6, 9, 10, 11, 12, 13, 15, 17, 18, 19}
		var arrived [][]byte
		for _, i := range order {
			arrived = append(arrived, datagrams[i])
		}
		frames, counts := coalesced(t, receiver, arrived)
		total := 0
		for i, frame := range frames {
			at, data := checkPacket(t, frame)
			if !bytes.Equal(data, payload[at:at+len(data)]) {
				t.Errorf("packet %d holds what does not belong at %d", i, at)
			}
			fin := frame[linux.VnetHeaderLen+int(binary.NativeEndian.Uint16(frame[vnetSumStart:]))+tcpFlagsOffset]&tcpFIN != 0
			if last := at+len(data) == len(payload); fin != last {
				t.Errorf("packet %d: FIN %v, last %v", i, fin, last)
			}
			total += len(data)
		}
		if total != len(order)*1000 || counts.malformed.Load() != 0 {
			t.Errorf("%d bytes came out of %d; %d malformed", total, len(order)*1000, counts.malformed.Load())
		}
	}
}

// checkPacket checks a TCP frame's lengths and sums and returns its payload
// and where in the stream that belongs.
func checkPacket(t testing.TB, frame []byte) (at int, payload []byte) {
	t.Helper()
	packet := frame[linux.VnetHeaderLen:]
	start := int(binary.NativeEndian.Uint16(frame[vnetSumStart:]))
	tcp := packet[start:]
	addresses := packet[8:40]
	if packet[0]>>4 == 4 {
		addresses = packet[12:20]
		if int(binary.BigEndian.Uint16(packet[2:])) != len(packet) || fold(sum(packet[:start], 0)) != 0xffff {
			t.Error("the IPv4 header is wrong")
		}
	} else if int(binary.BigEndian.Uint16(packet[4:])) != len(packet)-ipv6Header {
		t.Error("the IPv6 header is wrong")
	}
	if binary.BigEndian.Uint16(tcp[tcpSumOffset:]) != fold(sum(addresses, protocolTCP)+uint32(len(tcp))) {
		t.Error("the sum of the pseudo header is wrong")
	}
	return int(binary.BigEndian.Uint32(tcp[4:])) - 1000, tcp[int(tcp[12]>>4)*4:]
}

// FuzzCoalesce gives the coalescer arbitrary datagrams of an authenticated peer.
func FuzzCoalesce(f *testing.F) {
	sender, receiver := twoNodes(f)
	for _, ipv6 := range []bool{false, true} {
		datagrams := datagramsOf(f, sender, superPacket(ipv6, 1000, noise(3500)))
		f.Add(bytes.Join(datagrams, nil), uint16(len(datagrams[0])))
	}
	f.Fuzz(func(t *testing.T, data []byte, size uint16) {
		fuzzbound.Watch(t)
		var datagrams [][]byte
		for len(data) > 0 && size > 0 {
			n := min(int(size), len(data))
			datagrams = append(datagrams, data[:n:n])
			data = data[n:]
		}
		frames, _ := coalesced(t, receiver, datagrams)
		for _, frame := range frames {
			if len(frame) <= linux.VnetHeaderLen || len(frame) > linux.VnetHeaderLen+maxPacket+maxPacket {
				t.Errorf("a frame of %d bytes", len(frame))
			}
			if err := receiver.check(receiver.peers[0], frame[linux.VnetHeaderLen:]); err != nil {
				t.Errorf("delivered: %v", err)
			}
		}
	})
}

// FuzzCut gives the sender arbitrary frames of a device. The receiver must accept
// the datagrams that it makes of them.
func FuzzCut(f *testing.F) {
	sender, receiver := twoNodes(f)
	f.Add(superPacket(false, 1000, noise(3500)))
	f.Add(superPacket(true, 1000, noise(100)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		fuzzbound.Watch(t)
		if len(frame) <= linux.VnetHeaderLen || len(frame) > maxFrame {
			return
		}
		if sender.route(frame[linux.VnetHeaderLen:]) != sender.peers[1] {
			return
		}
		datagrams := datagramsOf(t, sender, frame)
		for _, datagram := range datagrams {
			if len(datagram) > maxUDPPayload {
				t.Errorf("a datagram of %d bytes", len(datagram))
			}
		}
		coalesced(t, receiver, datagrams)
	})
}

func TestPacketsAreNotAllocated(t *testing.T) {
	sender, receiver := twoNodes(t)
	s := testSender(sender)
	frame := append(make([]byte, headroom), superPacket(false, 1400, noise(60000))...)
	if n := testing.AllocsPerRun(100, func() {
		s.send(sender.peers[1], frame)
		for i := range s.n {
			s.prepare(i, s.n)
		}
		s.n, s.open, s.vector, s.headers = 0, false, s.vector[:0], s.headers[:0]
	}); n != 0 {
		t.Errorf("%v allocations to send a packet", n)
	}
	datagrams := datagramsOf(t, sender, frame[headroom:])
	g := newCoalescer(discard{}, new(counts))
	g.table = held(receiver)
	from := &source{peer: receiver.peers[0]}
	if n := testing.AllocsPerRun(100, func() {
		for i, datagram := range datagrams {
			g.add(from, uint64(i), datagram)
		}
		g.flush()
	}); n != 0 {
		t.Errorf("%v allocations to receive a packet", n)
	}
}

type discard struct{}

func (discard) write([]unix.Iovec) error { return nil }
