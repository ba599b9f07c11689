package overlay

import "sync/atomic"

// counts holds the counters of one queue. The padding keeps queues on different
// cores from sharing a cache line.
type counts struct {
	sentPackets, sentBytes         atomic.Uint64
	receivedPackets, receivedBytes atomic.Uint64
	foreign, replayed              atomic.Uint64
	spoofed, stray                 atomic.Uint64
	malformed, refused             atomic.Uint64
	unroutable, unsent, uncut      atomic.Uint64
	streamed, fragmented           atomic.Uint64
	_                              [64]byte
}

// Counters holds the totals of an overlay since New. A super-packet counts as one
// packet.
type Counters struct {
	SentPackets, SentBytes         uint64
	ReceivedPackets, ReceivedBytes uint64
	// Foreign counts datagrams from an unknown address or without a valid tag
	// of the current session, and streams that fail to authenticate.
	Foreign uint64
	// Replayed counts datagrams that had arrived before or were too old to
	// tell.
	Replayed uint64
	// Spoofed counts packets of a peer with another node's source address.
	Spoofed uint64
	// Stray counts packets of a peer with another node's destination address.
	Stray uint64
	// Malformed counts datagrams without a valid packet.
	Malformed uint64
	// Refused counts packets that the device did not accept.
	Refused uint64
	// Unroutable counts packets without a destination node, except for
	// multicast packets, which kernels send by themselves.
	Unroutable uint64
	// Unsent counts packets and datagrams without a path to the node, or that
	// the host's network did not accept.
	Unsent uint64
	// Uncut counts batches that were sent datagram by datagram after the kernel
	// refused to segment them. The path is narrower than the device's MTU, or
	// UDP_SEGMENT is not available.
	Uncut uint64
	// Streamed counts the sent packets that went over TCP.
	Streamed uint64
	// Fragmented counts the sent packets that went as fragments, because the
	// path is narrower than the device's MTU.
	Fragmented uint64
}

// Counters returns the current totals.
func (o *Overlay) Counters() Counters {
	var c Counters
	for i := range o.counts {
		from := &o.counts[i]
		c.SentPackets += from.sentPackets.Load()
		c.SentBytes += from.sentBytes.Load()
		c.ReceivedPackets += from.receivedPackets.Load()
		c.ReceivedBytes += from.receivedBytes.Load()
		c.Foreign += from.foreign.Load()
		c.Replayed += from.replayed.Load()
		c.Spoofed += from.spoofed.Load()
		c.Stray += from.stray.Load()
		c.Malformed += from.malformed.Load()
		c.Refused += from.refused.Load()
		c.Unroutable += from.unroutable.Load()
		c.Unsent += from.unsent.Load()
		c.Uncut += from.uncut.Load()
		c.Streamed += from.streamed.Load()
		c.Fragmented += from.fragmented.Load()
	}
	return c
}
