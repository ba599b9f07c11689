package members

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/launch/hostnet"
	"berth.dev/berth/internal/network/overlay"
)

const (
	// returnLimit bounds the attempts of a node to return to the head. Meanwhile
	// it checks every betweenKnocks whether the head is dead.
	returnLimit   = time.Minute
	betweenKnocks = 300 * time.Millisecond
)

// Join connects to the head, sends it this node's offer, and returns its answer.
func (m *Members) Join(ctx context.Context, offer cluster.Offer, cpus int) (Welcome, error) {
	m.introduced = true
	// The wait for the head is limited. Once connected, this node waits as long
	// as the head does.
	limited, cancel := m.waiting(ctx)
	defer cancel()
	if !m.HasHead() {
		if err := m.connect(limited); err != nil {
			return Welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
		}
	}
	head := hostnet.HostOf(m.head().RemoteAddr())
	bound := m.data
	if !bound.Address.IsValid() {
		// If a host has several addresses, the other nodes expect packets from
		// the local address of the connection to the head.
		bound.Address = hostnet.HostOf(m.head().LocalAddr())
	}
	var err error
	if m.sockets, err = bound.Open(cpus, head); err != nil {
		return Welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	offer.OverlayMTU = m.data.MTU
	if !m.data.Address.IsValid() {
		if offer.OverlayMTU, err = overlay.MTU([]netip.Addr{head}); err != nil {
			return Welcome{}, exitcode.Wrap(exitcode.Unavailable, err)
		}
	}
	answer, err := m.introduce(ctx, hello{
		Version: cluster.Version(), Offer: offer,
		Address: m.data.Address, Ports: m.sockets.Ports,
	})
	m.bound = bound.Address
	if m.pilot {
		m.back.step = len(answer.Plan.Members)
	}
	m.places, m.failover, m.own = hostnet.NewPlaces(answer.Network, prefixesOf(answer.Plan.Places())), answer.Succession, answer.Own
	return answer, exitcode.Wrap(exitcode.Unavailable, err)
}

// errNodeLeft is the error of connections after this node has left the run.
var errNodeLeft = errors.New("this node has left")

// connect finds the head and stores the connection.
func (m *Members) connect(ctx context.Context) error {
	head, err := m.findHead(ctx)
	if err != nil {
		return err
	}
	if !m.setHead(head) {
		head.Close("this node has left")
		return errNodeLeft
	}
	return nil
}

// oneFamily drops IPv6 addresses if there are IPv4 addresses. The address that a
// node uses to connect to the head is its address for all nodes. A node that
// connected by IPv4 does not reach one that connected by IPv6.
func oneFamily(addresses []netip.Addr) []netip.Addr {
	var four []netip.Addr
	for _, address := range addresses {
		if address.Unmap().Is4() {
			four = append(four, address)
		}
	}
	if len(four) > 0 {
		return four
	}
	return addresses
}

// applyChanges makes the changes of the network between the nodes that the head reports.
func (m *Members) applyChanges(changes []hostnet.Change) {
	var refused []hostnet.Change
	for _, change := range changes {
		if self, _ := m.places.Self(); change.Index == self {
			continue
		}
		if m.places.Apply(change) != nil {
			refused = append(refused, change)
		}
	}
	// A node may have moved to another place, and its earlier place is changed only now.
	for _, change := range refused {
		if err := m.places.Apply(change); err != nil {
			m.log.Debug(err.Error())
		}
	}
}

// Follow receives import requests from the head and calls do with each, which must not
// block, and with the function that answers it. If the connection is lost, it
// reconnects as the process with this run ID. It returns the error when the head
// closes the connection or stays lost.
func (m *Members) Follow(ctx context.Context, runID string, do func(request ImportRequest, answer func(error))) error {
	again := hello{Version: cluster.Version(), Offer: cluster.Offer{RunID: runID}, Returning: true}
	for {
		var message headMessage
		err := m.head().Receive(ctx, &message)
		if m.pilot && headIsAway(err) {
			if err := m.returnToSeat(ctx, runID, err); err != nil {
				settle(ctx)
				return exitcode.Wrap(exitcode.Unavailable, err)
			}
			continue
		}
		if lost, ok := errors.AsType[*rendezvous.LostError](err); ok {
			if m.reconnect(ctx, again, lost) == nil {
				continue
			}
			settle(ctx)
			if m.failover != nil {
				return exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w; it has not come back, and no other node has taken the run over: of %d control planes two must reach each other", lost, cluster.ControlNodes))
			}
			return exitcode.Wrap(exitcode.Unavailable, lost)
		} else if err != nil {
			return err
		}
		m.applyChanges(message.Changes)
		request, head := message.Import, m.head()
		if request == nil {
			continue
		}
		do(*request, func(err error) {
			answer := report{Number: request.Number}
			if err != nil {
				answer.Problem, answer.Code = err.Error(), exitcode.Of(err)
			}
			_ = head.Send(ctx, statusMessage{Report: &answer}) // a lost head waits for no answer
		})
	}
}

// reconnect connects to the lost head or its successor.
func (m *Members) reconnect(ctx context.Context, again hello, lost *rendezvous.LostError) error {
	address := m.head().RemoteAddr()
	if m.failover == nil && !lost.Silent() && refused(address) {
		return lost // the head is dead: nobody listens any more
	}
	m.log.Warn(fmt.Sprintf("%v; looking for it", lost))
	ctx, cancel := context.WithTimeout(ctx, returnLimit)
	defer cancel()
	// The listener of a process that was just killed may outlive its connections
	// for a moment, so check more than once.
	if m.failover == nil {
		go func() {
			for !refused(address) {
				select {
				case <-time.After(betweenKnocks):
				case <-ctx.Done():
					return
				}
			}
			cancel()
		}()
	}
	err := m.returnTo(ctx, again)
	// A head that ends still lets nodes in, and its successor may not listen yet.
	for err != nil && m.failover != nil && ctx.Err() == nil && !errors.Is(err, errNodeLeft) {
		m.log.Debug("this head does not take the node back: " + err.Error())
		select {
		case <-time.After(betweenKnocks):
		case <-ctx.Done():
		}
		err = m.returnTo(ctx, again)
	}
	if err != nil {
		m.log.Debug("cannot return to the head: " + err.Error())
		return err
	}
	m.Moved(m.head().Name())
	m.reportReady(ctx)
	return nil
}

// returnTo connects to a head, and receives what has changed meanwhile.
func (m *Members) returnTo(ctx context.Context, again hello) error {
	if err := m.connect(ctx); err != nil {
		return err
	}
	answer, err := m.introduce(ctx, again)
	m.applyChanges(answer.Changes)
	return err
}

// refused reports whether a host refuses connections to an address.
func refused(address net.Addr) bool {
	conn, err := net.DialTimeout("tcp", address.String(), time.Second)
	if err == nil {
		conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
