package fair

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// heavyAt is the number of waiting queries that makes a client heavy.
	heavyAt = 4
	// lightFor is the time after a query during which a client that is not heavy is
	// considered.
	lightFor = time.Second
	// heavyShare is the share of all turns, as time, that heavy clients have together
	// while another client asks. With more, the program would use all of its processor
	// time for them: the kernel would then let it wait for a processor, and a client with
	// a single query with it.
	heavyShare = 0.125
	// heavyBurst is the time that heavy clients may use at once.
	heavyBurst = 2 * time.Millisecond
)

// turns bounds the queries that are handled at one time, and hands free turns to
// the clients in rotation.
type turns struct {
	most int // queries handled at one time
	wait int // waiting queries of one client

	mu      sync.Mutex
	running int
	clients map[netip.Addr]*line
	// order holds the clients with waiting queries; the first has the next turn.
	order []*line
	// light holds the last two clients that asked while none of their queries waited.
	light [2]lightClient
	// budget is the time that heavy clients may still use, as of counted. Each processor
	// owes heavyBurst at most: a turn may last for minutes while the process is stopped.
	budget  time.Duration
	counted time.Time
	timer   *time.Timer // set while a heavy client waits for the budget
}

// line holds the waiting queries of a client, oldest first.
type line struct {
	client  netip.Addr
	waiting []chan turn
}

type lightClient struct {
	address netip.Addr
	at      time.Time
}

// turn is a query's permission to take processor time.
type turn struct {
	began time.Time
	heavy bool // it counts against the budget
}

func newTurns(most, wait int) *turns {
	return &turns{most: most, wait: wait, clients: make(map[netip.Addr]*line), budget: heavyBurst}
}

// take waits for a turn of the client. It reports false at once if too many of the
// client's queries wait already. Otherwise the caller calls give.
func (t *turns) take(client netip.Addr) (turn, bool) {
	t.mu.Lock()
	l := t.clients[client]
	if l == nil {
		t.remember(client)
		if t.running < t.most {
			t.running++
			t.mu.Unlock()
			return turn{began: time.Now()}, true
		}
		l = &line{client: client}
		t.clients[client] = l
		t.order = append(t.order, l)
	}
	if len(l.waiting) >= t.wait {
		t.mu.Unlock()
		return turn{}, false
	}
	mine := make(chan turn, 1)
	l.waiting = append(l.waiting, mine)
	t.grant()
	t.mu.Unlock()
	return <-mine, true
}

// remember notes that a client without waiting queries asks. The caller holds the lock.
func (t *turns) remember(client netip.Addr) {
	if t.light[0].address != client {
		t.light[1] = t.light[0]
	}
	t.light[0] = lightClient{client, time.Now()}
}

// give ends a turn. The next client in rotation gets it.
func (t *turns) give(done turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	if done.heavy {
		t.budget = max(t.budget-time.Since(done.began), -time.Duration(t.most)*heavyBurst)
	}
	t.grant()
}

// grant hands out the free turns. The caller holds the lock.
func (t *turns) grant() {
	for t.running < t.most && len(t.order) > 0 {
		i := slices.IndexFunc(t.order, t.may)
		if i < 0 {
			t.await()
			return
		}
		l := t.order[i]
		t.order = slices.Delete(t.order, i, i+1)
		t.running++
		l.waiting[0] <- turn{time.Now(), t.counts(l)}
		if l.waiting = l.waiting[1:]; len(l.waiting) > 0 {
			t.order = append(t.order, l)
		} else {
			delete(t.clients, l.client)
		}
	}
}

// may reports whether the next turn may be the client's. The caller holds the lock.
func (t *turns) may(l *line) bool {
	if !t.counts(l) {
		return true
	}
	now := time.Now()
	if earned := now.Sub(t.counted).Seconds() * heavyShare * float64(t.most); earned < 1 {
		t.budget = min(heavyBurst, t.budget+time.Duration(earned*float64(time.Second)))
	} else {
		t.budget = heavyBurst
	}
	t.counted = now
	return t.budget > 0
}

// counts reports whether turns of a client count against the budget: it is heavy, and
// another client has asked for little of late. The caller holds the lock.
func (t *turns) counts(l *line) bool {
	return len(l.waiting) >= heavyAt && slices.ContainsFunc(t.light[:], func(c lightClient) bool {
		return c.address != l.client && time.Since(c.at) < lightFor
	})
}

// await grants turns again when the budget allows it. The caller holds the lock.
func (t *turns) await() {
	if t.timer != nil {
		return
	}
	missing := time.Duration(float64(-t.budget) / (heavyShare * float64(t.most)))
	t.timer = time.AfterFunc(missing+heavyBurst/2, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.timer = nil
		t.grant()
	})
}
