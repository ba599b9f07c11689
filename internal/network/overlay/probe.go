package overlay

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"time"
)

// Timing of the prober. A lost answer only costs another hello. After five
// consecutive rounds without an answer, UDP counts as blocked.
const (
	minProbeWait      = 20 * time.Millisecond // doubles up to maxProbeWait
	maxProbeWait      = time.Second
	answerTimeout     = 250 * time.Millisecond
	idleProbeInterval = 3 * time.Second
	roundsLost        = 5
	narrowRound       = 2               // volleys that must agree that a path is narrower
	widenEvery        = 20              // quiet rounds between volleys, which find out if a path carries more again
	streamAfter       = 3               // unanswered rounds until TCP is tried, if no size gets through
	dialInterval      = 2 * time.Second // between attempts to connect
	returnAfter       = 3               // answered rounds until UDP is used again
	// tick is the shortest time between two passes over the paths, unless an event
	// comes.
	tick = 10 * time.Millisecond
	// A path whose round is due within together is probed at once, so that an
	// idle node wakes up once for all its paths.
	together = 5 * time.Millisecond
	// idleTick is the time between rounds of a path without UDP while it has no
	// stream.
	idleTick = 250 * time.Millisecond
	// warnAfter is the time without an answer after which a warning is logged.
	// On a busy machine one node may start a second later than another.
	warnAfter = 3 * time.Second
)

// probeSizes holds the sizes of datagrams, in bytes, to try when the largest does not
// get through: the UDP payload over IPv6 for each common MTU, and the minimum.
var probeSizes = [...]int{8952, 8852, 7952, 4422, 4044, 1996, 1452, 1444, 1402, 1372, 1322, 1272, 1232, minDatagram}

// probing is the prober's state of a path. Only the prober's goroutine uses it.
type probing struct {
	generation uint64
	nonce      nonce
	sequence   uint32
	session    *session // nil until the first answer
	instance   nonce    // the nonce of the session's receiver

	limit        int           // the largest size that gets through; 0 if none does
	due          time.Time     // time of the next round
	wait         time.Duration // between rounds until an answer arrives
	oldest       uint32        // sequence number of the first hello whose answer counts
	askedSize    int           // the largest size of the current round
	answeredSize int           // the largest answered size of the current round
	volley       bool          // the round probes many sizes
	narrower     int           // consecutive volleys with a smaller size
	silent       int           // consecutive rounds without an answer
	since        time.Time     // start of the silence; zero without one
	warned       bool          // the silence was logged
	answered     int           // consecutive rounds with an answer
	quiet        int           // number of rounds without a lost datagram of limit bytes

	stream        *stream
	dialling      bool
	dialDue       time.Time
	loggedCarrier string // the carrier that was logged
}

// answer is a node's answer to a hello that a queue of this node sent.
type answer struct {
	from  *peer
	queue int
	control
}

// prober determines for each path the largest datagram that gets through, and
// opens a stream where none does. Its hellos also establish the sessions.
type prober struct {
	overlay *Overlay
	log     *slog.Logger
	carrier Carrier
	hello   []byte
	// answers come from the receivers. A kick reports that a peer has just sent
	// its first hello, and an event of streams that a stream is up or down.
	answers chan answer
	kicks   chan *peer
	streams chan streamEvent
	connect func(ctx context.Context, p *path, generation uint64)

	mu sync.Mutex
	// old holds the peers that were replaced and not yet forgotten. changes reports
	// that there are some.
	old     []*peer
	changes chan struct{}
}

func newProber(o *Overlay, carrier Carrier, log *slog.Logger) *prober {
	return &prober{
		overlay: o, log: log, carrier: carrier,
		hello:   make([]byte, maxUDPPayload),
		answers: make(chan answer, 256),
		kicks:   make(chan *peer, 64),
		streams: make(chan streamEvent, 64),
		changes: make(chan struct{}, 1),
	}
}

// run probes the paths until ctx ends, and then returns nil.
func (p *prober) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-p.answers:
			p.handleAnswer(a, time.Now())
		case to := <-p.kicks:
			p.kick(to)
		case event := <-p.streams:
			p.handleStreamEvent(event, time.Now())
		case <-p.changes:
			p.forget()
		case <-timer.C:
		}
		now := time.Now()
		next := now.Add(idleProbeInterval)
		for _, one := range p.paths() {
			if one.due.Before(now.Add(together)) {
				p.round(ctx, one, now)
			}
			next = minTime(next, one.due)
		}
		timer.Reset(max(tick, time.Until(next)))
	}
}

// paths returns the paths to all nodes.
func (p *prober) paths() []*path {
	var all []*path
	for _, to := range p.overlay.table.Load().peers {
		if to != nil {
			all = append(all, to.paths...)
		}
	}
	return all
}

// kick schedules a round for the paths to a peer at once.
func (p *prober) kick(to *peer) {
	for _, one := range to.paths {
		// The current round had no time to be answered; judge ignores it.
		one.due, one.wait, one.askedSize = time.Time{}, 0, 0
	}
}

// round judges the previous round of a path and starts the next. For a path without
// UDP, it opens a stream instead.
func (p *prober) round(ctx context.Context, one *path, now time.Time) {
	if !p.triesDatagrams(one) {
		p.ensureStream(ctx, one, now)
		if one.stream != nil {
			one.since, one.warned = time.Time{}, false
			one.due = now.Add(idleProbeInterval)
			return
		}
		p.noteSilence(one, now)
		one.due = now.Add(idleTick)
		return
	}
	p.judge(one, now)
	if one.limit == 0 && one.silent >= streamAfter && p.carrier == carrierAuto {
		p.ensureStream(ctx, one, now)
	}
	if one.limit > 0 {
		// Until the first answer, answers to earlier rounds count, too.
		one.oldest = one.sequence
	}
	one.askedSize, one.answeredSize = 0, 0
	switch {
	case one.limit == 0:
		p.ask(one, minDatagram)
		p.ask(one, one.full)
		one.wait = min(max(minProbeWait, 2*one.wait), maxProbeWait)
		one.due = now.Add(one.wait)
	case one.volley:
		for _, size := range probeSizes {
			if size < one.full {
				p.ask(one, size)
			}
		}
		p.ask(one, one.full)
		one.due = now.Add(answerTimeout)
	default:
		p.ask(one, one.limit)
		// An answer sets a later time.
		one.due = now.Add(answerTimeout)
	}
}

// triesDatagrams reports whether a path may use UDP.
func (p *prober) triesDatagrams(one *path) bool {
	return p.carrier != carrierTCP && one.endpoint.IsValid()
}

// judge evaluates the answers of the round that ends.
func (p *prober) judge(one *path, now time.Time) {
	if one.askedSize == 0 {
		return
	}
	if one.answeredSize == 0 {
		one.silent++
		one.answered = 0
		one.volley = one.limit > 0
		p.noteSilence(one, now)
		if one.silent == roundsLost && one.limit > 0 {
			one.limit, one.wait = 0, 0
		}
		p.choose(one)
		return
	}
	one.silent, one.since, one.warned = 0, time.Time{}, false
	one.answered++
	switch {
	case one.answeredSize < one.limit && one.volley:
		if one.narrower++; one.narrower >= narrowRound {
			p.log.Warn("the network to a node drops packets that fit its MTU; sending smaller ones", "node", one.peer.name, "bytes", one.answeredSize, "expected", one.limit)
			one.limit, one.narrower = one.answeredSize, 0
		}
	case one.answeredSize < one.limit:
		one.volley = true
	default:
		one.narrower = 0
		one.quiet++
		// Most paths carry the full size. For the others, the first volley
		// finds a larger size than the minimum.
		one.volley = one.limit < one.full && (one.quiet == 1 || one.quiet%widenEvery == 0)
	}
	p.choose(one)
}

// noteSilence warns once when a path has had no answer for warnAfter.
func (p *prober) noteSilence(one *path, now time.Time) {
	if one.since.IsZero() {
		one.since = now
	}
	if one.warned || now.Sub(one.since) < warnAfter {
		return
	}
	one.warned = true
	text := "UDP does not get through to a node; packets take TCP, which is slower. Allow the ports of --port-range between the nodes"
	if one.stream == nil {
		text = "no packet gets through to a node. If it is up, allow the ports of --port-range between the nodes, or choose one network with --interface"
	}
	p.log.Warn(text, "node", one.peer.name, "queue", one.queue, "endpoint", one.endpoint)
}

// ask sends a hello of the size, in bytes.
func (p *prober) ask(one *path, size int) {
	c := control{kind: kindHello, generation: one.generation, nonce: one.nonce, sequence: one.sequence, from: uint32(p.overlay.self)}
	one.sequence++
	one.askedSize = max(one.askedSize, size)
	c.encode(one.peer.asking, p.hello)
	p.overlay.queues[one.queue].sendControl(p.hello[:size], &one.sockaddr)
}

// handleAnswer updates the path that an answer belongs to.
func (p *prober) handleAnswer(a answer, now time.Time) {
	if a.queue >= len(a.from.paths) {
		return
	}
	one := a.from.paths[a.queue]
	if a.nonce != one.nonce || a.sequence-one.oldest >= one.sequence-one.oldest {
		return // of an earlier round, or replayed
	}
	if int64(a.size) > int64(one.full) {
		return // larger than any hello on this path
	}
	if a.generation > one.generation {
		// The receiver knows a later generation: this host's clock went back.
		one.generation = a.generation + 1
		rand.Read(one.nonce[:])
		one.due, one.session = time.Time{}, nil
		return
	}
	if one.session == nil || a.instance != one.instance {
		purpose := purposeOf("datagrams", p.overlay.self, one.peer.index, one.generation, one.nonce, a.instance)
		fresh, err := newSession(p.overlay.key, purpose)
		if err != nil {
			p.log.Warn("no session with a node", "node", one.peer.name, "error", err)
			return
		}
		one.session, one.instance = fresh, a.instance
	}
	one.answeredSize = max(one.answeredSize, int(a.size))
	if one.answeredSize > one.limit {
		one.limit = one.answeredSize
	}
	one.wait = 0
	if one.answeredSize >= one.askedSize {
		one.due = now.Add(idleProbeInterval)
		if one.sending.Load() != nil && one.sending.Load().stream != nil {
			one.due = now.Add(answerTimeout)
		}
	} else {
		one.due = minTime(one.due, now.Add(answerTimeout))
	}
	p.choose(one)
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// choose selects the transport of a path from the results of its rounds.
func (p *prober) choose(one *path) {
	current := one.sending.Load()
	switch {
	case one.limit > 0 && one.session != nil && (current == nil || current.stream == nil || one.stream == nil || one.answered >= returnAfter):
		if current == nil || current.stream != nil || current.session != one.session || current.limit != one.limit {
			one.sending.Store(&sending{session: one.session, limit: one.limit})
		}
		p.logCarrier(one, "udp")
		if one.stream != nil && one.answered >= returnAfter {
			one.stream.close()
			one.stream = nil
		}
	case one.stream != nil && (one.silent >= roundsLost || !p.triesDatagrams(one)):
		if current == nil || current.stream != one.stream {
			one.sending.Store(&sending{stream: one.stream})
		}
		p.logCarrier(one, "tcp")
	}
}

// logCarrier logs a change of the carrier.
func (p *prober) logCarrier(one *path, carrier string) {
	before := one.loggedCarrier
	one.loggedCarrier = carrier
	switch {
	case before == carrier || before == "" && carrier == "udp":
	case carrier == "udp":
		p.log.Info("UDP gets through to a node again", "node", one.peer.name, "queue", one.queue)
	case p.carrier == carrierAuto:
		p.log.Info("packets to a node take TCP", "node", one.peer.name, "queue", one.queue)
	}
}
