package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

const (
	// reachPeriod is the time between two pings of a node's gateways. A gateway counts as
	// unreachable after reachMisses missing answers in a row.
	reachPeriod = time.Second
	reachMisses = 3
)

// reach finds the gateways that this node reaches. etcd only knows which are alive.
type reach struct {
	// missed counts missing answers in a row, by gateway.
	missed map[netip.Addr]int
}

// count records one round of pings and returns the gateways that are unreachable. If no
// gateway answers, count returns none: the site probably filters pings, and no gateway would
// be no better. That does not apply if own is true: this host is then a gateway itself, which
// it reaches.
func (r *reach) count(asked []netip.Addr, answered map[netip.Addr]bool, own bool) map[netip.Addr]bool {
	missed := map[netip.Addr]int{}
	away := map[netip.Addr]bool{}
	for _, gateway := range asked {
		if answered[gateway] {
			continue
		}
		if missed[gateway] = r.missed[gateway] + 1; missed[gateway] >= reachMisses {
			away[gateway] = true
		}
	}
	r.missed = missed
	if len(away) == len(asked) && !own {
		return map[netip.Addr]bool{}
	}
	return away
}

// ask sends an echo request to each gateway. A request that cannot be sent counts as
// unanswered.
func ask(conn *icmp.PacketConn, gateways []netip.Addr, round uint32) error {
	text, err := (&icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: os.Getpid() & 0xffff, Seq: int(round & 0xffff), Data: data(round)}}).Marshal(nil)
	if err != nil {
		return err
	}
	for _, gateway := range gateways {
		_, _ = conn.WriteTo(text, &net.IPAddr{IP: gateway.AsSlice()})
	}
	return nil
}

func data(round uint32) []byte { return binary.BigEndian.AppendUint32([]byte("berthd"), round) }

// answers returns the gateways that answer this round within half a period.
func answers(conn *icmp.PacketConn, asked []netip.Addr, round uint32) (map[netip.Addr]bool, error) {
	answered := map[netip.Addr]bool{}
	if len(asked) == 0 {
		return answered, nil
	}
	if err := conn.SetReadDeadline(time.Now().Add(reachPeriod / 2)); err != nil {
		return nil, err
	}
	packet := make([]byte, 1500)
	for len(answered) < len(asked) {
		n, from, err := conn.ReadFrom(packet)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read answers: %w", err)
		}
		address, ok := netip.AddrFromSlice(from.(*net.IPAddr).IP.To4())
		if ok && slices.Contains(asked, address) && isAnswer(packet[:n], round) {
			answered[address] = true
		}
	}
	return answered, nil
}

func isAnswer(packet []byte, round uint32) bool {
	message, err := icmp.ParseMessage(ipv4.ICMPTypeEchoReply.Protocol(), packet)
	if err != nil || message.Type != ipv4.ICMPTypeEchoReply {
		return false
	}
	echo, ok := message.Body.(*icmp.Echo)
	return ok && slices.Equal(echo.Data, data(round))
}
