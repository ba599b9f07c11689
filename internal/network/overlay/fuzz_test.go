package overlay

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil/fuzzbound"
)

// fuzzedNode returns an overlay of node b with one queue, whose device and socket
// are /dev/null.
func fuzzedNode(t testing.TB) (o *Overlay, sender *table) {
	t.Helper()
	sender, receiver := twoNodes(t)
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(null) })
	o = &Overlay{key: testKey, self: 1, log: slog.New(slog.DiscardHandler), counts: make([]counts, 1)}
	o.table.Store(receiver)
	o.prober = newProber(o, carrierUDP, o.log)
	o.queues = []*queue{{
		log: o.log, counts: &o.counts[0], table: &o.table, prober: o.prober, key: testKey, self: 1,
		device: null, socket: null, end: -1,
	}}
	return o, sender
}

// FuzzControl sends datagrams from the other node's socket. Where proven is true,
// they have its authentication code, as if the node was taken over.
func FuzzControl(f *testing.F) {
	o, sender := fuzzedNode(f)
	key := sender.peers[1].asking
	for _, c := range []control{
		{kind: kindHello, generation: 1, sequence: 1},
		{kind: kindAnswer, generation: 1, sequence: 1, size: 1400},
		{kind: kindAnswer, generation: 1 << 63, sequence: 1},
		{kind: kindAnswer, generation: 1, sequence: 1, size: 1 << 31},
		{kind: kindStreamHello, generation: 1},
	} {
		message := make([]byte, controlLen, 1400)
		c.encode(key, message)
		f.Add(message, true, uint32(2))
		f.Add(message[:cap(message)], false, uint32(2))
	}
	f.Fuzz(func(t *testing.T, datagram []byte, proven bool, sequence uint32) {
		fuzzbound.Watch(t)
		if len(datagram) < wireLen || len(datagram) > maxUDPPayload {
			return
		}
		to := o.table.Load().peers[0]
		one := newPath(to, 0, false)
		to.paths = []*path{one}
		one.sequence = sequence
		r := newFuzzedReceiver(o)
		from := r.origin(to.endpoints[0])
		if proven && len(datagram) >= controlLen {
			datagram = bytes.Clone(datagram)
			datagram[atVnet] |= 0x80
			datagram[atVersion] = controlVersion
			copy(datagram[atBody+8:], one.nonce[:])
			binary.BigEndian.PutUint32(datagram[atBody+48:], 0)
			mac := controlMAC(key, datagram)
			copy(datagram, mac[:])
		}
		into := newCoalescer(o.queues[0], o.queues[0].counts)
		into.table = r.table
		var name unix.RawSockaddrInet6
		for range 2 { // the second one is a replay
			if err := r.take(from, &name, datagram, into); err != nil {
				t.Fatal(err)
			}
		}
		for len(o.prober.answers) > 0 {
			o.prober.handleAnswer(<-o.prober.answers, time.Now())
		}
		for len(o.prober.kicks) > 0 {
			<-o.prober.kicks
		}
		// The next round sends a hello as large as the answer says.
		if one.limit > one.full {
			t.Fatalf("datagrams of up to %d bytes on a path for %d", one.limit, one.full)
		}
	})
}

func newFuzzedReceiver(o *Overlay) *udpReceiver {
	return &udpReceiver{
		queue: o.queues[0], instance: newNonce(),
		origins: map[netip.AddrPort]*origin{}, strange: map[uint32]bool{},
	}
}

// answers is a connection from the other node. What is written to it is lost.
type answers struct {
	net.Conn
	io.Reader
}

func (answers) RemoteAddr() net.Addr         { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9} }
func (a answers) Read(p []byte) (int, error) { return a.Reader.Read(p) }
func (answers) Write(p []byte) (int, error)  { return len(p), nil }

// FuzzStream reads what another node sends on a stream: its hello and then frames,
// where proven is true with the right tags.
func FuzzStream(f *testing.F) {
	o, sender := fuzzedNode(f)
	key := sender.peers[1].asking
	frame := func(datagram []byte) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(datagram))), datagram...)
	}
	for _, ipv6 := range []bool{false, true} {
		packet := superPacket(ipv6, 1000, noise(3000))
		f.Add(frame(append(make([]byte, headroom), packet...)), true)
		for _, datagram := range datagramsOf(f, sender, packet) {
			f.Add(frame(datagram), false)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte, proven bool) {
		fuzzbound.Watch(t)
		if len(data) > 4*maxPacket {
			return
		}
		if _, _, _, err := o.greet(answers{Reader: bytes.NewReader(data)}); err == nil && !proven {
			t.Error("a node without the key is taken")
		}
		var hello [controlLen]byte
		control{kind: kindStreamHello, generation: 1, nonce: newNonce(), from: 0}.encode(key, hello[:])
		from, _, r, err := o.greet(answers{Reader: bytes.NewReader(hello[:])})
		if err != nil {
			t.Fatal(err)
		}
		if proven {
			data = bytes.Clone(data)
			sealFrames(r.session, data)
		}
		into := newCoalescer(new(shelf), new(counts))
		into.table = &o.table
		rest, err := unframe(data, from, r, into)
		if err == nil && len(rest) > len(data) {
			t.Errorf("%d bytes are left of %d", len(rest), len(data))
		}
		for _, delivered := range into.out.(*shelf).frames {
			if err := into.table.Load().check(from, delivered[linux.VnetHeaderLen:]); err != nil {
				t.Errorf("delivered: %v", err)
			}
		}
	})
}

// sealFrames gives all frames in data the tags that the receiver expects.
func sealFrames(s *session, data []byte) {
	var number uint64
	for len(data) >= lengthLen {
		size := int(binary.BigEndian.Uint32(data))
		if size < wireLen || len(data)-lengthLen < size {
			return
		}
		datagram := data[lengthLen : lengthLen+size]
		binary.BigEndian.PutUint32(datagram[atNumber:], uint32(number))
		binary.LittleEndian.PutUint64(datagram, s.tag(number, datagram[:covered(datagram)], size))
		data = data[lengthLen+size:]
		number++
	}
}
