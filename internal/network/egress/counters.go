package egress

import "sync/atomic"

// Counters counts the flows and packets of an egress. The zero value is ready; it
// must not be copied. Several runs in sequence may share it.
type Counters struct {
	tcp, attempts, udp, echo, dns      gauge
	toPods, fromPods                   atomic.Uint64
	refused, failed, dropped, overflow atomic.Uint64
	repeated                           atomic.Uint64
}

// gauge counts flows since the start, and open ones.
type gauge struct{ total, open atomic.Int64 }

func (g *gauge) enter() int64 { g.total.Add(1); return g.open.Add(1) }
func (g *gauge) leave()       { g.open.Add(-1) }

// Stats is a snapshot of Counters.
type Stats struct {
	// Connections, Attempts (to connect), Flows (UDP), Echoes (ping) and Queries (DNS over
	// UDP) count since the start. The Open fields count the current ones.
	Connections, ConnectionsOpen int64
	Attempts, AttemptsOpen       int64
	Flows, FlowsOpen             int64
	Echoes, EchoesOpen           int64
	Queries, QueriesOpen         int64
	// BytesToPods and BytesFromPods count the payload of TCP and UDP.
	BytesToPods, BytesFromPods uint64
	// Refused counts flows to an address that pods may not reach.
	Refused uint64
	// Failed counts connections that the other end refused or did not answer.
	Failed uint64
	// Dropped counts packets that were malformed, multicast, or found a full
	// buffer.
	Dropped uint64
	// Overflowed counts flows that a limit in Config refused or ended.
	Overflowed uint64
	// Repeated counts TCP segments that were sent to a pod again. A Run adds its number
	// when it ends.
	Repeated uint64
}

// Stats returns the current counts.
func (c *Counters) Stats() Stats {
	return Stats{
		Connections: c.tcp.total.Load(), ConnectionsOpen: c.tcp.open.Load(),
		Attempts: c.attempts.total.Load(), AttemptsOpen: c.attempts.open.Load(),
		Flows: c.udp.total.Load(), FlowsOpen: c.udp.open.Load(),
		Echoes: c.echo.total.Load(), EchoesOpen: c.echo.open.Load(),
		Queries: c.dns.total.Load(), QueriesOpen: c.dns.open.Load(),
		BytesToPods: c.toPods.Load(), BytesFromPods: c.fromPods.Load(),
		Refused: c.refused.Load(), Failed: c.failed.Load(),
		Dropped: c.dropped.Load(), Overflowed: c.overflow.Load(),
		Repeated: c.repeated.Load(),
	}
}
