package overlay

import (
	"context"
	"crypto/rand"
	"log/slog"
	"slices"
	"time"
)

// When the prober asks. A lost answer costs some asking and nothing else; five
// rounds without any mean that UDP does not get through.
const (
	firstWait   = 20 * time.Millisecond // doubles until
	mostWait    = time.Second
	answerWait  = 250 * time.Millisecond
	quietWait   = 3 * time.Second
	roundsLost  = 5
	narrowRound = 2               // so many volleys must agree that a path is narrower
	widenEvery  = 20              // quiet rounds: the path may carry more again
	streamAfter = 3               // unanswered rounds from the start until TCP is tried
	streamWait  = 2 * time.Second // between attempts to connect
	backAfter   = 3               // answered rounds until UDP is taken again
	tick        = 10 * time.Millisecond
	// What is due so soon is done at once, so that a node that has nothing to
	// do wakes up once for all its paths.
	together = 5 * time.Millisecond
	idleTick = 250 * time.Millisecond
	// warnAfter is how long UDP gets no answer until people hear of it. On a busy
	// machine a node may be a second later than another.
	warnAfter = 3 * time.Second
)

// rungs are the sizes of datagram that are tried where the largest does not
// get through: for each usual MTU what it leaves with IPv6.
var rungs = [...]int{8952, 8852, 7952, 4422, 4044, 1996, 1452, 1444, 1402, 1372, 1322, 1272, 1232, leastLimit}

// probing is what the prober knows of a path; it is the prober's alone.
type probing struct {
	generation uint64
	nonce      nonce
	sequence   uint32
	session    *session
	instance   nonce // of the receiver that the session is with

	limit    int       // what gets through; 0 where nothing does
	due      time.Time // for the next round
	wait     time.Duration
	oldest   uint32    // sequence, of the round's first hello
	asked    int       // the largest size of the round
	heard    int       // the largest size that was answered in the round
	volley   bool      // many sizes are asked for
	narrower int       // volleys that agreed
	silent   int       // rounds without an answer
	since    time.Time // of the first of them; zero without any
	warned   bool      // of this silence
	answered int       // rounds with one, since the last without
	quiet    int

	stream   *stream
	dialling bool
	dialDue  time.Time
	told     string // the carrier that was logged
}

// answer is what came back on a path.
type answer struct {
	from  *peer
	queue int
	control
}

// prober finds out for each path which datagrams get through, and what is to
// be done where none do. It agrees with the receivers on sessions on the way.
type prober struct {
	overlay *Overlay
	log     *slog.Logger
	carrier Carrier
	hello   []byte
	// answers come from the receivers, kicks say that a peer has just begun to
	// talk, and ends that a stream is up or down.
	answers chan answer
	kicks   chan *peer
	streams chan streamEvent
	connect func(ctx context.Context, p *path, generation uint64)
	known   *table
}

func newProber(o *Overlay, carrier Carrier, log *slog.Logger) *prober {
	return &prober{
		overlay: o, log: log, carrier: carrier,
		hello:   make([]byte, maxUDPPayload),
		answers: make(chan answer, 256),
		kicks:   make(chan *peer, 64),
		streams: make(chan streamEvent, 64),
	}
}

// run ends with ctx.
func (p *prober) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case a := <-p.answers:
			p.hear(a, time.Now())
		case to := <-p.kicks:
			if to != nil { // or the nodes have changed
				p.kick(to)
			}
		case event := <-p.streams:
			p.hearStream(event, time.Now())
		case <-timer.C:
		}
		now := time.Now()
		next := now.Add(quietWait)
		for _, one := range p.paths() {
			if one.due.Before(now.Add(together)) {
				p.round(ctx, one, now)
			}
			next = minTime(next, one.due)
		}
		timer.Reset(max(tick, time.Until(next)))
	}
}

// paths are those of the table of this moment. A path that is in none any more
// is forgotten, with its stream.
func (p *prober) paths() []*path {
	current := p.overlay.tables.Load()
	if current != p.known {
		p.forget(current)
		p.known = current
	}
	var all []*path
	for _, to := range current.peers {
		if to != nil {
			all = append(all, to.paths...)
		}
	}
	return all
}

func (p *prober) forget(current *table) {
	if p.known == nil {
		return
	}
	for _, to := range p.known.peers {
		if to == nil || slices.Contains(current.peers, to) {
			continue
		}
		for _, one := range to.paths {
			if one.stream != nil {
				one.stream.close()
			}
		}
	}
}

// kick has the paths to a peer asked at once.
func (p *prober) kick(to *peer) {
	for _, one := range to.paths {
		// What was asked had no time to be answered.
		one.due, one.wait, one.asked = time.Time{}, 0, 0
	}
}

// round judges what was asked last and asks again.
func (p *prober) round(ctx context.Context, one *path, now time.Time) {
	if !p.mayDatagrams(one) {
		p.wantStream(ctx, one, now)
		if one.stream != nil {
			one.since, one.warned = time.Time{}, false
			one.due = now.Add(quietWait)
			return
		}
		p.beSilent(one, now)
		one.due = now.Add(idleTick)
		return
	}
	p.judge(one, now)
	if one.limit == 0 && one.silent >= streamAfter && p.carrier == CarrierAuto {
		p.wantStream(ctx, one, now)
	}
	if one.limit > 0 {
		// Before anything gets through, a late answer is as good as any.
		one.oldest = one.sequence
	}
	one.asked, one.heard = 0, 0
	switch {
	case one.limit == 0:
		p.ask(one, leastLimit)
		p.ask(one, one.full)
		one.wait = min(max(firstWait, 2*one.wait), mostWait)
		one.due = now.Add(one.wait)
	case one.volley:
		for _, size := range rungs {
			if size < one.full {
				p.ask(one, size)
			}
		}
		p.ask(one, one.full)
		one.due = now.Add(answerWait)
	default:
		p.ask(one, one.limit)
		// Unless something is heard, which sets another time.
		one.due = now.Add(answerWait)
	}
}

// mayDatagrams tells whether UDP is to be tried at all.
func (p *prober) mayDatagrams(one *path) bool {
	return p.carrier != CarrierTCP && one.endpoint.IsValid()
}

// judge draws conclusions from the round that ends.
func (p *prober) judge(one *path, now time.Time) {
	if one.asked == 0 {
		return
	}
	if one.heard == 0 {
		one.silent++
		one.answered = 0
		one.volley = one.limit > 0
		p.beSilent(one, now)
		if one.silent == roundsLost && one.limit > 0 {
			one.limit, one.wait = 0, 0
		}
		p.choose(one)
		return
	}
	one.silent, one.since, one.warned = 0, time.Time{}, false
	one.answered++
	switch {
	case one.heard < one.limit && one.volley:
		if one.narrower++; one.narrower >= narrowRound {
			p.log.Warn("a network between the nodes carries smaller packets only, and does not say so", "node", one.peer.name, "bytes", one.heard, "promised", one.limit)
			one.limit, one.narrower = one.heard, 0
		}
	case one.heard < one.limit:
		one.volley = true
	default:
		one.narrower = 0
		one.quiet++
		// Most paths carry what their ends promise; the first volley says of
		// the others what they do.
		one.volley = one.limit < one.full && (one.quiet == 1 || one.quiet%widenEvery == 0)
	}
	p.choose(one)
}

// beSilent warns of a path that has been without an answer for long.
func (p *prober) beSilent(one *path, now time.Time) {
	if one.since.IsZero() {
		one.since = now
	}
	if one.warned || now.Sub(one.since) < warnAfter {
		return
	}
	one.warned = true
	text := "UDP does not get through to a node; packets take TCP, which is slower. Let the ports of --port-range pass between the nodes"
	if one.stream == nil {
		text = "no packet gets through to a node. If it is up, let the ports of --port-range pass between the nodes, or choose one network with --interface"
	}
	p.log.Warn(text, "node", one.peer.name, "queue", one.queue, "endpoint", one.endpoint)
}

// ask sends a hello of the size.
func (p *prober) ask(one *path, size int) {
	c := control{kind: kindHello, generation: one.generation, nonce: one.nonce, sequence: one.sequence, from: uint32(p.overlay.self)}
	one.sequence++
	one.asked = max(one.asked, size)
	c.encode(one.peer.asking, p.hello)
	p.overlay.queues[one.queue].sendControl(p.hello[:size], &one.sockaddr)
}

// hear takes an answer in.
func (p *prober) hear(a answer, now time.Time) {
	if a.queue >= len(a.from.paths) {
		return
	}
	one := a.from.paths[a.queue]
	if a.nonce != one.nonce || a.sequence-one.oldest >= one.sequence-one.oldest {
		return // of an earlier round, or played back
	}
	if a.generation > one.generation {
		// The receiver remembers a later one: this host's clock went back.
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
	one.heard = max(one.heard, int(a.size))
	if one.heard > one.limit {
		one.limit = one.heard
	}
	one.wait = 0
	if one.heard >= one.asked {
		one.due = now.Add(quietWait)
		if one.sending.Load() != nil && one.sending.Load().stream != nil {
			one.due = now.Add(answerWait)
		}
	} else {
		one.due = minTime(one.due, now.Add(answerWait))
	}
	p.choose(one)
}

func minTime(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// choose lets packets go by what is known to get through.
func (p *prober) choose(one *path) {
	current := one.sending.Load()
	switch {
	case one.limit > 0 && one.session != nil && (current == nil || current.stream == nil || one.stream == nil || one.answered >= backAfter):
		if current == nil || current.stream != nil || current.session != one.session || current.limit != one.limit {
			one.sending.Store(&sending{session: one.session, limit: one.limit})
		}
		p.tell(one, "udp")
		if one.stream != nil && one.answered >= backAfter {
			one.stream.close()
			one.stream = nil
		}
	case one.stream != nil && (one.silent >= roundsLost || !p.mayDatagrams(one)):
		if current == nil || current.stream != one.stream {
			one.sending.Store(&sending{stream: one.stream})
		}
		p.tell(one, "tcp")
	}
}

// tell logs another carrier.
func (p *prober) tell(one *path, carrier string) {
	before := one.told
	one.told = carrier
	switch {
	case before == carrier || before == "" && carrier == "udp":
	case carrier == "udp":
		p.log.Info("UDP gets through to a node again", "node", one.peer.name, "queue", one.queue)
	case p.carrier == CarrierAuto:
		p.log.Info("packets to a node take TCP", "node", one.peer.name, "queue", one.queue)
	}
}
