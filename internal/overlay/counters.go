package overlay

import "sync/atomic"

// counts is what one queue counts. It is padded, so that queues on different
// cores do not share a cache line.
type counts struct {
	sentPackets, sentBytes         atomic.Uint64
	receivedPackets, receivedBytes atomic.Uint64
	foreign, replayed              atomic.Uint64
	spoofed, stray                 atomic.Uint64
	malformed, refused             atomic.Uint64
	unroutable, unsent, uncut      atomic.Uint64
	streamed, pieced               atomic.Uint64
	_                              [64]byte
}

// Counters are what an overlay has done since it was made. A packet counts
// once, however large it is.
type Counters struct {
	SentPackets, SentBytes         uint64
	ReceivedPackets, ReceivedBytes uint64
	// Foreign datagrams came from an address that is no peer's, or without
	// proof that the peer whose address it is sent them since both started.
	// Streams that do not prove whose they are count, too.
	Foreign uint64
	// Replayed datagrams came before, or too late to tell.
	Replayed uint64
	// Spoofed packets came from a peer and claimed to be from elsewhere.
	Spoofed uint64
	// Stray packets came from a peer and are for an address of another node.
	Stray uint64
	// Malformed datagrams hold no packet.
	Malformed uint64
	// Refused packets the device did not take.
	Refused uint64
	// Unroutable packets are for no node. Multicasts, which kernels send by
	// themselves, are not counted.
	Unroutable uint64
	// Unsent packets and datagrams the host's network did not take, or no way
	// to the node was known.
	Unsent uint64
	// Uncut counts where the kernel refused to cut, so that each datagram
	// was sent by itself: the path is narrower than the device's MTU, or
	// UDP_SEGMENT is not available.
	Uncut uint64
	// Streamed packets, among those sent, went over TCP.
	Streamed uint64
	// Pieced packets, among those sent, went as several datagrams because the
	// path is narrower than the device.
	Pieced uint64
}

// Counters returns the counts of this moment.
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
		c.Pieced += from.pieced.Load()
	}
	return c
}
