package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

// throughLink returns a lab of two nodes whose datagrams all pass the link.
func throughLink(t *testing.T, link *badLink, config labConfig) *lab {
	t.Helper()
	config.through = func(l *lab) {
		asFirst, asSecond := link.between(l, 0, 1)
		l.views = [][]Node{{l.nodes[0], l.nodes[1]}, {l.nodes[0], l.nodes[1]}}
		l.views[0][1].Endpoints = asSecond
		l.views[1][0].Endpoints = asFirst
	}
	return newLab(t, config)
}

// awaitPaths returns when all nodes reach each other.
func (l *lab) awaitPaths() {
	l.Helper()
	for i, m := range l.members {
		testutil.Eventually(l, fmt.Sprintf("node %d has paths to the others", i), func() bool {
			return !slices.ContainsFunc(m.overlay.paths(), func(p pathState) bool { return p.Carrier == "" })
		})
	}
}

// isBy reports whether all paths of all nodes use the carrier.
func (l *lab) isBy(carrier string) func() bool {
	return func() bool {
		for _, m := range l.members {
			for _, p := range m.overlay.paths() {
				if p.Carrier != carrier {
					return false
				}
			}
		}
		return true
	}
}

func TestTCPWhereUDPIsBlocked(t *testing.T) {
	link := &badLink{}
	link.closed.Store(true)
	l := throughLink(t, link, labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 2, streams: true})
	testutil.Eventually(t, "packets take TCP", l.isBy("tcp"))
	a, b := l.members[0], l.members[1]
	ping(t, a, b.nodeAddr)
	sendTCP(t, a, b.serveTCP(t, b.nodeAddr), noise(3_000_001))
	sendTCP(t, b, a.serveTCP(t, a.nodeIPv6()), noise(3_000_001))
	if c := a.overlay.Counters(); c.Streamed == 0 {
		t.Errorf("no packet went over TCP: %+v", c)
	}

	link.closed.Store(false)
	testutil.Eventually(t, "packets take UDP again", l.isBy("udp"))
	sendTCP(t, a, b.serveTCP(t, b.nodeAddr), noise(1_000_001))

	// An open connection survives when UDP stops getting through.
	address := b.serveTCP(t, b.nodeAddr)
	conn := a.dial(t, "tcp", address)
	if _, err := conn.Write(noise(100_000)); err != nil {
		t.Fatal(err)
	}
	link.closed.Store(true)
	if _, err := conn.Write(noise(100_000)); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "packets take TCP", l.isBy("tcp"))
	conn.(*net.TCPConn).CloseWrite()
	if n, err := conn.Read(make([]byte, 100)); err != nil || n != 32 {
		t.Errorf("the flow did not go on: %d bytes, %v", n, err)
	}
	for i, m := range l.members {
		if c := m.overlay.Counters(); c.Foreign+c.Replayed+c.Spoofed+c.Stray+c.Malformed != 0 {
			t.Errorf("node %d dropped packets of its peer: %+v", i, c)
		}
	}
}

func TestLateNodeIsNotTakenForNodeWithoutUDP(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 2, streams: true, late: true})
	ping(t, l.members[0], l.members[1].nodeAddr)
	for i, m := range l.members {
		if c := m.overlay.Counters(); c.Streamed > 0 || m.warned.Load() > 0 {
			t.Errorf("node %d warned %d times and sent %d packets over TCP", i, m.warned.Load(), c.Streamed)
		}
	}
}

func TestSilentlyNarrowerPath(t *testing.T) {
	for _, most := range []int{8000, 1472, 1300} {
		t.Run(fmt.Sprint(most), func(t *testing.T) {
			link := &badLink{}
			link.most.Store(int64(most))
			l := throughLink(t, link, labConfig{mtus: []int{9000, 9000}, offloads: true, queues: 2})
			a, b := l.members[0], l.members[1]
			testutil.Eventually(t, "the size is found", func() bool { return narrowest(l) > most*9/10 })
			for _, address := range []netip.Addr{b.nodeAddr, b.nodeIPv6()} {
				sendTCP(t, a, b.serveTCP(t, address), noise(2_000_001))
				udp := b.serveUDP(t, address)
				for _, size := range []int{1, 1372, 8700, 40000} {
					echoUDP(t, a, udp, noise(size))
				}
			}
			if c := a.overlay.Counters(); c.Fragmented == 0 {
				t.Errorf("no packet was fragmented: %+v", c)
			}
		})
	}
}

// narrowest returns the smallest limit of all paths.
func narrowest(l *lab) int {
	least := maxUDPPayload
	for _, m := range l.members {
		for _, p := range m.overlay.paths() {
			least = min(least, p.Datagram)
		}
	}
	return least
}

func TestPathMTUDecreases(t *testing.T) {
	link := &badLink{}
	l := throughLink(t, link, labConfig{mtus: []int{9000, 9000}, offloads: true})
	a, b := l.members[0], l.members[1]
	testutil.Eventually(t, "the path is wide", func() bool { return narrowest(l) > 8900 })
	link.most.Store(1472)
	testutil.Eventually(t, "it is narrow", func() bool { return narrowest(l) <= 1472 })
	sendTCP(t, a, b.serveTCP(t, b.nodeAddr), noise(1_000_001))
	echoUDP(t, a, b.serveUDP(t, b.nodeAddr), noise(8000))
}

// TestForeignStreamsEnd opens streams that do not authenticate as the node at
// their address. They are closed and counted.
func TestForeignStreamsEnd(t *testing.T) {
	l := newLab(t, labConfig{mtus: []int{1500, 1500, 1500}, offloads: true, carrier: carrierTCP, streams: true})
	target, peer, other := l.members[0], l.members[1], l.members[2]
	key, _ := controlKey(testKey, 1, 0)
	hello := make([]byte, controlLen)
	control{kind: kindStreamHello, nonce: newNonce(), from: 1}.encode(key, hello)
	wrong := append([]byte(nil), hello...)
	wrong[0] ^= 1
	unknown := make([]byte, controlLen)
	control{kind: kindStreamHello, nonce: newNonce(), from: 77}.encode(key, unknown)
	frame := append([]byte{0, 0, 0, 52}, packetOf(netip.AddrPortFrom(peer.nodeAddr, 1), netip.AddrPortFrom(target.nodeAddr, 9))...)
	for _, test := range []struct {
		what string
		from *member
		said []byte
	}{
		{"nothing a node says", peer, noise(controlLen)},
		{"a wrong code", peer, wrong},
		{"no node", peer, unknown},
		{"sent on by another host", other, hello},
		{"a frame that is not sealed", peer, append(append([]byte(nil), hello...), frame...)},
		{"a frame of no length", peer, append(append([]byte(nil), hello...), 0, 0, 0, 1)},
	} {
		t.Run(test.what, func(t *testing.T) {
			before := target.overlay.Counters()
			conn, err := test.from.dialHost(t.Context(), l.nodes[0].Stream)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(20 * time.Second))
			conn.Write(test.said)
			for buffer := make([]byte, 100); err == nil; {
				_, err = conn.Read(buffer)
			}
			if os.IsTimeout(err) {
				t.Errorf("the stream stays open")
			}
			after := target.overlay.Counters()
			if test.what != "a frame of no length" && after.Foreign == before.Foreign {
				t.Errorf("it is not counted: %+v", after)
			}
			if after.ReceivedPackets != before.ReceivedPackets {
				t.Errorf("packets were delivered: %+v", after)
			}
		})
	}
}

// TestNothingIsLeft runs overlays with paths of both kinds and looks for
// goroutines and descriptors afterwards.
func TestNothingIsLeft(t *testing.T) {
	testutil.Require(t, testutil.UserNS, testutil.TUN)
	descriptors := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	for _, carrier := range []Carrier{carrierAuto, carrierTCP} {
		t.Run(string(carrier), func(t *testing.T) {
			l := newLab(t, labConfig{mtus: []int{1500, 1500}, offloads: true, queues: 2, streams: true, carrier: carrier})
			a, b := l.members[0], l.members[1]
			sendTCP(t, a, b.serveTCP(t, b.nodeAddr), noise(100_000))
			a.stop(t)
			b.stop(t)
			var stacks string
			testutil.Eventually(t, "no goroutine of an overlay is left", func() bool {
				buffer := make([]byte, 1<<20)
				stacks = string(buffer[:runtime.Stack(buffer, true)])
				return !strings.Contains(stacks, "overlay.(*Overlay)") && !strings.Contains(stacks, "overlay.(*queue)") && !strings.Contains(stacks, "overlay.(*stream)")
			})
			before := descriptors()
			a.listener, b.listener = nil, nil
			for range 3 {
				for i, m := range l.members {
					m.carrier = carrierUDP
					m.start(t, i, l.nodes)
				}
				l.awaitPaths()
				a.stop(t)
				b.stop(t)
			}
			testutil.Eventually(t, "no descriptor is left", func() bool { return descriptors() <= before })
		})
	}
}

// pathState describes the state of a path.
type pathState struct {
	Node  string
	Queue int
	// Carrier is "udp" or "tcp", or empty if nothing gets through.
	Carrier string
	// Datagram is the size of the largest datagram that gets through, in bytes
	// of UDP payload.
	Datagram int
}

// paths returns the current state of the paths to the other nodes.
func (o *Overlay) paths() []pathState {
	var all []pathState
	for _, to := range o.table.Load().peers {
		if to == nil {
			continue
		}
		for _, p := range to.paths {
			one := pathState{Node: to.name, Queue: p.queue}
			switch by := p.sending.Load(); {
			case by == nil:
			case by.stream != nil:
				one.Carrier = "tcp"
			default:
				one.Carrier, one.Datagram = "udp", by.limit
			}
			all = append(all, one)
		}
	}
	return all
}
