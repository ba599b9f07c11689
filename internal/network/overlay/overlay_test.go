package overlay

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func noise(size int) []byte {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	source.Read(data)
	return data
}

// sendTCP sends data and compares the checksum that comes back.
func sendTCP(t testing.TB, from *member, to string, data []byte) {
	t.Helper()
	conn := from.dial(t, "tcp", to)
	if _, err := conn.Write(data); err != nil {
		t.Errorf("send: %v", err)
		return
	}
	conn.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(conn)
	if want := sha256.Sum256(data); err != nil || !bytes.Equal(answer, want[:]) {
		t.Errorf("what arrived is not what was sent (%v)", err)
	}
}

// echoUDP sends a datagram repeatedly until its echo arrives.
func echoUDP(t testing.TB, from *member, to string, data []byte) {
	t.Helper()
	conn := from.dial(t, "udp", to)
	answer := make([]byte, 1<<16)
	for range 100 {
		if _, err := conn.Write(data); err != nil {
			t.Fatal(err)
		}
		conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if n, err := conn.Read(answer); err == nil {
			if !bytes.Equal(answer[:n], data) {
				t.Fatal("another datagram came back")
			}
			return
		}
	}
	t.Fatalf("no answer to a datagram of %d bytes", len(data))
}

// ping sends an ICMP echo request and waits for the answer.
func ping(t testing.TB, from *member, to netip.Addr) {
	t.Helper()
	conn := from.dial(t, "ip4:icmp", to.String())
	request := []byte{8, 0, 0, 0, 0x12, 0x34, 0, 1, 'b', 'e', 'r', 't'}
	check := ^fold(sum(request, 0))
	request[2], request[3] = byte(check>>8), byte(check)
	answer := make([]byte, 100)
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	for {
		n, _, err := conn.(*net.IPConn).ReadFrom(answer)
		if err != nil {
			t.Fatalf("no answer to ping: %v", err)
		}
		if n >= 12 && answer[0] == 0 && bytes.Equal(answer[4:n], request[4:]) {
			return
		}
	}
}

func TestNodesReachEachOther(t *testing.T) {
	for _, test := range []struct {
		name   string
		config labConfig
	}{
		{"three nodes", labConfig{mtus: []int{1500, 1500, 1500}, offloads: true}},
		{"jumbo frames", labConfig{mtus: []int{9000, 9000}, offloads: true}},
		{"many queues", labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 4}},
		{"IPv6 sockets", labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 2, wildcard: true}},
		{"no offloads", labConfig{mtus: []int{1500, 1500}}},
		{"a narrow path", labConfig{mtus: []int{9000, 1500}, offloads: true, inner: 8900}},
		{"an IPv6 underlay", labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 2, ipv6: true}},
		{"TCP carrier", labConfig{mtus: []int{1500, 1500, 1500}, offloads: true, queues: 2, carrier: carrierTCP, streams: true}},
		{"TCP carrier over IPv6", labConfig{mtus: []int{9000, 9000}, offloads: true, ipv6: true, carrier: carrierTCP, streams: true}},
		{"a narrow path and no offloads", labConfig{mtus: []int{9000, 1500}, inner: 8900}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, test.config)
			for i, from := range l.members {
				for j, to := range l.members {
					if i == j {
						continue
					}
					ping(t, from, to.nodeAddr)
					for _, address := range []netip.Addr{to.nodeAddr, to.nodeIPv6()} {
						sendTCP(t, from, to.serveTCP(t, address), noise(3_000_001))
						udp := to.serveUDP(t, address)
						for _, size := range []int{1, 1372, 9000, 40000} {
							echoUDP(t, from, udp, noise(size))
						}
					}
				}
			}
			for i, m := range l.members {
				c := m.overlay.Counters()
				if c.Foreign+c.Spoofed+c.Stray+c.Malformed != 0 {
					t.Errorf("node %d dropped packets of its peers: %+v", i, c)
				}
			}
		})
	}
}

func TestManyFlowsAtOnce(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500, 1500}, offloads: true, queues: 2})
	var flows sync.WaitGroup
	for i, to := range l.members {
		address := to.serveTCP(t, to.nodeAddr)
		for j, from := range l.members {
			if i == j {
				continue
			}
			for range 8 {
				flows.Go(func() { sendTCP(t, from, address, noise(1_000_003)) })
			}
		}
	}
	flows.Wait()
}

func TestSuperPacketsAreNotSplit(t *testing.T) {
	const bytes = 30 << 20
	for _, mtu := range []int{1500, 9000} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			l := newLab(t, labConfig{mtus: []int{mtu, mtu}, offloads: true})
			sendTCP(t, l.members[0], l.members[1].serveTCP(t, l.members[1].nodeAddr), noise(bytes))
			c := l.members[1].overlay.Counters()
			if average := c.ReceivedBytes / c.ReceivedPackets; average < 10000 {
				t.Errorf("packets arrive with %d bytes on average: %+v", average, c)
			}
			if uncut := l.members[0].overlay.Counters().Uncut; uncut != 0 {
				t.Errorf("the host refused to cut %d times", uncut)
			}
		})
	}
}

// TestSuperDatagramsAreNotSplit sends many datagrams in one call. All arrive, and the
// overlay carries few packets.
func TestSuperDatagramsAreNotSplit(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500}, offloads: true})
	from, to := l.members[0], l.members[1]
	var socket net.PacketConn
	to.node.try(t, func() (err error) {
		socket, err = net.ListenPacket("udp4", netip.AddrPortFrom(to.nodeAddr, 0).String())
		return err
	})
	defer socket.Close()
	conn := from.dial(t, "udp", socket.LocalAddr().String()).(*net.UDPConn)
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	const size, count = 1000, 40
	var failure error
	if err := raw.Control(func(fd uintptr) { failure = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) }); err != nil || failure != nil {
		t.Skip("needs UDP_SEGMENT:", err, failure)
	}
	before := to.overlay.Counters().ReceivedPackets
	data := noise(size * count)
	if _, err := conn.Write(data); err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 2*size)
	for i := range count {
		socket.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, _, err := socket.ReadFrom(buffer)
		if err != nil || !bytes.Equal(buffer[:n], data[i*size:(i+1)*size]) {
			t.Fatalf("datagram %d: %d bytes, %v", i, n, err)
		}
	}
	if c := to.overlay.Counters(); c.ReceivedPackets-before > count/2 {
		t.Errorf("%d packets were delivered for %d datagrams", c.ReceivedPackets-before, count)
	}
}
