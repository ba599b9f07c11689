package overlay

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/internal/base/linux"
)

// plainDatagram returns a frame with one UDP packet; superDatagram has several.
func plainDatagram(ipv6 bool, payload []byte) []byte {
	frame := superDatagram(ipv6, len(payload), payload)
	frame[vnetGSOType] = gsoNone
	binary.NativeEndian.PutUint16(frame[vnetGSOSize:], 0)
	if !ipv6 {
		packet := frame[linux.VnetHeaderLen:]
		packet[6] = 0x40 // never to be fragmented
		binary.BigEndian.PutUint16(packet[10:], 0)
		binary.BigEndian.PutUint16(packet[10:], ^fold(sum(packet[:minIPv4Header], 0)))
	}
	return frame
}

// travelled sends frames one by one and returns the packets written to the device.
func travelled(t *testing.T, single bool, frames ...[]byte) [][]byte {
	t.Helper()
	sender, receiver := twoNodes(t)
	out := new(shelf)
	g := newCoalescer(out, new(counts))
	g.table, g.single = held(receiver), single
	from := &source{peer: receiver.peers[0]}
	for i, frame := range frames {
		for _, datagram := range datagramsOf(t, sender, slices.Clone(frame)) {
			if err := g.add(from, uint64(i), datagram); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := g.flush(); err != nil {
		t.Fatal(err)
	}
	return out.frames
}

func TestPlainDatagramsOfAFlowAreJoined(t *testing.T) {
	const size = 1000
	for _, ipv6 := range []bool{false, true} {
		data := noise(5*size + 300)
		var frames [][]byte
		for piece := range slices.Chunk(data, size) {
			frames = append(frames, plainDatagram(ipv6, piece))
		}
		want := superDatagram(ipv6, size, data)
		binary.NativeEndian.PutUint16(want[vnetHeaders:], uint16(len(want)-linux.VnetHeaderLen-len(data)))
		if !ipv6 {
			packet := want[linux.VnetHeaderLen:]
			packet[6] = 0x40
			binary.BigEndian.PutUint16(packet[10:], 0)
			binary.BigEndian.PutUint16(packet[10:], ^fold(sum(packet[:minIPv4Header], 0)))
		}
		if got := travelled(t, false, frames...); len(got) != 1 || !bytes.Equal(got[0], want) {
			t.Errorf("IPv6 %v: not the packet of all datagrams came out (%d)", ipv6, len(got))
		}
		if got := travelled(t, true, frames...); len(got) != len(frames) {
			t.Errorf("IPv6 %v: %d packets came out for a device that takes them singly, want %d", ipv6, len(got), len(frames))
		}
	}
}

func TestOtherDatagramsAreNotJoined(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		one := plainDatagram(ipv6, noise(1000))
		start := int(binary.NativeEndian.Uint16(one[vnetSumStart:]))
		packet := linux.VnetHeaderLen
		for what, change := range map[string]func(frame []byte){
			"another port":             func(f []byte) { f[packet+start+1]++ },
			"another source":           func(f []byte) { f[packet+start-5]++ },
			"another class":            func(f []byte) { f[packet+1] ^= 0x10 },
			"another hop count":        func(f []byte) { f[packet+7], f[packet+8] = 9, map[bool]byte{true: f[packet+8], false: 9}[ipv6] },
			"a sum that was made":      func(f []byte) { f[vnetFlags] = 0 },
			"TCP":                      func(f []byte) { f[packet+map[bool]int{true: 6, false: 9}[ipv6]] = protocolTCP },
			"another length in itself": func(f []byte) { f[packet+start+5]++ },
		} {
			other := slices.Clone(one)
			change(other)
			for _, frames := range [][][]byte{{one, other}, {other, one}} {
				if got := travelled(t, false, frames...); len(got) != 2 {
					t.Errorf("IPv6 %v, %s: %d packets came out, want 2", ipv6, what, len(got))
				}
			}
		}
		larger := plainDatagram(ipv6, noise(1001))
		if got := travelled(t, false, one, larger); len(got) != 2 {
			t.Errorf("IPv6 %v: a larger one was joined", ipv6)
		}
		smaller := plainDatagram(ipv6, noise(999))
		if got := travelled(t, false, one, smaller, one); len(got) != 2 {
			t.Errorf("IPv6 %v: %d packets came out where a smaller one is between, want 2", ipv6, len(got))
		}
	}
}

// TestPlainDatagramsArrive sends the packets of two flows one by one.
func TestPlainDatagramsArrive(t *testing.T) {
	for _, ipv6 := range []bool{false, true} {
		t.Run(fmt.Sprintf("IPv6=%v", ipv6), func(t *testing.T) {
			l := newLab(t, labConfig{mtus: []int{1500, 1500}, offloads: true})
			from, to := l.members[0], l.members[1]
			address := to.nodeAddr
			if ipv6 {
				address = to.nodeIPv6()
			}
			var socket net.PacketConn
			to.node.try(t, func() (err error) {
				socket, err = net.ListenPacket("udp", netip.AddrPortFrom(address, 0).String())
				return err
			})
			defer socket.Close()
			flows := []net.Conn{from.dial(t, "udp", socket.LocalAddr().String()), from.dial(t, "udp", socket.LocalAddr().String())}
			// Few enough for the buffer of a socket.
			const count = 40
			data := noise(2000)
			sizeOf := func(i int) int { return 1200 - i/4%2*(i%50) }
			missing := map[string]int{}
			for i := range count {
				flow, content := flows[i/10%2], data[i:i+sizeOf(i)]
				missing[flow.LocalAddr().String()+string(content)]++
				if _, err := flow.Write(content); err != nil {
					t.Fatal(err)
				}
			}
			for range count {
				buffer := make([]byte, 2000)
				socket.SetReadDeadline(time.Now().Add(20 * time.Second))
				n, source, err := socket.ReadFrom(buffer)
				if err != nil {
					t.Fatalf("%d datagrams are missing: %v", len(missing), err)
				}
				what := source.String() + string(buffer[:n])
				if missing[what]--; missing[what] < 0 {
					t.Fatalf("%d bytes from %v that were not sent, or not so often", n, source)
				}
			}
		})
	}
}
