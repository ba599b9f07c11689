package fair

import (
	"net/netip"
	"sync"
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
}

// line holds the waiting queries of a client, oldest first.
type line struct {
	client  netip.Addr
	waiting []chan struct{}
}

func newTurns(most, wait int) *turns {
	return &turns{most: most, wait: wait, clients: make(map[netip.Addr]*line)}
}

// take waits for a turn of the client. It reports false at once if too many of the
// client's queries wait already. Otherwise the caller calls give.
func (t *turns) take(client netip.Addr) bool {
	t.mu.Lock()
	if t.running < t.most {
		t.running++
		t.mu.Unlock()
		return true
	}
	l := t.clients[client]
	if l == nil {
		l = &line{client: client}
		t.clients[client] = l
		t.order = append(t.order, l)
	}
	if len(l.waiting) >= t.wait {
		t.mu.Unlock()
		return false
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	t.mu.Unlock()
	<-turn
	return true
}

// give ends a turn. The next client in rotation gets it.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.order) == 0 {
		t.running--
		return
	}
	l := t.order[0]
	t.order = t.order[1:]
	close(l.waiting[0])
	if l.waiting = l.waiting[1:]; len(l.waiting) > 0 {
		t.order = append(t.order, l)
	} else {
		delete(t.clients, l.client)
	}
}
