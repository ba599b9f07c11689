package overlay

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
)

// badLink is a link between two members that drops and reorders datagrams. It has
// two sockets on the router; each stands for one member towards the other.
type badLink struct {
	loss, swap           float64
	closed               atomic.Bool
	most                 atomic.Int64 // bytes of a datagram; 0: any
	carried, lost, moved atomic.Uint64
}

// between replaces the endpoints of two members by the link. It uses no timers: a
// datagram that is held back goes after the next one.
func (b *badLink) between(l *lab, first, second int) (asFirst, asSecond []netip.AddrPort) {
	for queue := range l.members[first].conns {
		toFirst := b.listen(l, first)
		toSecond := b.listen(l, second)
		go b.carry(toSecond, toFirst, l.members[first].endpoints()[queue], uint64(queue))
		go b.carry(toFirst, toSecond, l.members[second].endpoints()[queue], uint64(queue)+100)
		// The second member sees the link's socket as the address of the first.
		asFirst = append(asFirst, toSecond.LocalAddr().(*net.UDPAddr).AddrPort())
		asSecond = append(asSecond, toFirst.LocalAddr().(*net.UDPAddr).AddrPort())
	}
	return asFirst, asSecond
}

func (b *badLink) listen(l *lab, towards int) *net.UDPConn {
	l.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, byte(towards), 1)})
	if err != nil {
		l.Fatal(err)
	}
	l.Cleanup(func() { conn.Close() })
	_ = conn.SetReadBuffer(socketBuffer)
	return conn
}

func (b *badLink) carry(from, out *net.UDPConn, to netip.AddrPort, seed uint64) {
	chance := rand.New(rand.NewPCG(seed, 42))
	var held []byte
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := from.ReadFromUDPAddrPort(buffer)
		if err != nil {
			return
		}
		b.carried.Add(1)
		most := b.most.Load()
		switch {
		case b.closed.Load() || most > 0 && int64(n) > most:
			continue
		case chance.Float64() < b.loss:
			b.lost.Add(1)
			continue
		case held == nil && chance.Float64() < b.swap:
			b.moved.Add(1)
			held = append([]byte(nil), buffer[:n]...)
			continue
		}
		out.WriteToUDPAddrPort(buffer[:n], to)
		if held != nil {
			out.WriteToUDPAddrPort(held, to)
			held = nil
		}
	}
}

func TestLossAndReordering(t *testing.T) {
	for _, test := range []struct {
		name       string
		loss, swap float64
	}{
		{"one of a hundred lost", 0.01, 0},
		{"some swapped", 0, 0.05},
		{"both", 0.01, 0.05},
	} {
		t.Run(test.name, func(t *testing.T) {
			link := &badLink{loss: test.loss, swap: test.swap}
			l := newLab(t, labConfig{
				mtus: []int{1500, 1500}, offloads: true, queues: 2,
				through: func(l *lab) {
					asFirst, asSecond := link.between(l, 0, 1)
					l.views = [][]Node{{l.nodes[0], l.nodes[1]}, {l.nodes[0], l.nodes[1]}}
					l.views[0][1].Endpoints = asSecond
					l.views[1][0].Endpoints = asFirst
				},
			})
			for _, to := range []netip.Addr{l.members[1].nodeAddr, l.members[1].nodeIPv6()} {
				sendTCP(t, l.members[0], l.members[1].serveTCP(t, to), noise(2_000_001))
				echoUDP(t, l.members[0], l.members[1].serveUDP(t, to), noise(1372))
			}
			if link.loss > 0 && link.lost.Load() == 0 || link.swap > 0 && link.moved.Load() == 0 {
				t.Errorf("the link was good: %d carried, %d lost, %d swapped", link.carried.Load(), link.lost.Load(), link.moved.Load())
			}
			for i, m := range l.members {
				if c := m.overlay.Counters(); c.Foreign+c.Spoofed+c.Stray+c.Malformed+c.Refused != 0 {
					t.Errorf("node %d dropped packets: %+v", i, c)
				}
			}
		})
	}
}
