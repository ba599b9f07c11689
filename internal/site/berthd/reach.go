package berthd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

const (
	// reachPeriod is how often a node asks its gateways whether it reaches them, and
	// reachMisses how many answers are missed before it does not.
	reachPeriod = time.Second
	reachMisses = 3
)

// reach says which gateways this node reaches: etcd only knows that they live.
type reach struct {
	// missed are answers in a row, by gateway.
	missed map[netip.Addr]int
}

// count notes one round of questions, and returns those of the asked that are not
// reached. Where nobody answers, it is more likely that the site lets no questions
// pass than that all are away, and to be without gateways is no better. own: this host
// is a gateway that lives, and so one that is reached.
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

// watchReach asks gateways as long as pods here need them, and there is a choice.
func (d *Daemon) watchReach(ctx context.Context) error {
	return d.persist(ctx, "ask gateways whether they are reached", func(ctx context.Context) error {
		conn, err := icmp.ListenPacket("ip4:icmp", d.host.String())
		if err != nil {
			return fmt.Errorf("listen for answers: %w", err)
		}
		defer conn.Close()
		var r reach
		ticker := time.NewTicker(reachPeriod)
		defer ticker.Stop()
		for round := uint32(0); ; round++ {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
			asked, own := d.gateways.asked(d.host)
			if len(asked) == 0 {
				r.missed = nil
			} else if err := ask(conn, asked, round); err != nil {
				return err
			}
			answered, err := answers(conn, asked, round)
			if err != nil {
				return err
			}
			if away := r.count(asked, answered, own); d.gateways.setAway(away) {
				d.log.Warn("gateways that this node does not reach", "gateways", slices.Collect(maps.Keys(away)))
				d.touch()
			}
		}
	})
}

// ask by an echo request, which hosts answer unless somebody has told them not to. One
// that cannot be sent has no answer, either.
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

// answers of this round that come within half of a period.
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
