// Package balancer brings connections of a node to one of several servers that
// answer alike: to the preferred one as long as that is well, otherwise to
// another. It passes bytes on and knows nothing of what they say; how a server
// is asked whether it is well is the caller's business.
package balancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	// Every server that has connections is asked every period, and the one in use
	// whenever a connection breaks.
	defaultPeriod = time.Second
	// defaultPatience is how long one may take to answer, on a machine whose
	// processors are all busy. Should no other answer either, it stays in use.
	defaultTimeout = 2 * time.Second
	// doubtShare is the part of the patience, as a divisor, that a server gets
	// to which a connection has broken.
	doubtShare = 4
	// returnPeriods is how many periods lie between two questions whether the
	// preferred server is well again.
	returnPeriods = 4
	// startPause is the time between two looks for a first server, and headStart
	// how much later than another one the preferred may be.
	startPause = 20 * time.Millisecond
	headStart  = 300 * time.Millisecond
)

// Config says whom a Balancer serves.
type Config struct {
	// Servers are addresses, the preferred one first.
	Servers []string
	// Check asks a server whether it is well.
	Check func(ctx context.Context, server string) error
	// Dial connects to a server.
	Dial func(ctx context.Context, server string) (net.Conn, error)
	// Period and Patience have defaults: 1 s and 2 s.
	Period, Timeout time.Duration
	Log             *slog.Logger
}

// Balancer passes connections on. Make one with New.
type Balancer struct {
	cfg Config
	// suspect asks for a look at the server in use.
	suspect chan struct{}

	mu sync.Mutex
	// current is the server in use, empty as long as none has been well.
	current string
	// found is closed when there is one.
	found chan struct{}
	// open are the connections by server.
	open map[string]map[net.Conn]struct{}
}

// New makes a balancer; Run makes it look at its servers.
func New(cfg Config) (*Balancer, error) {
	if len(cfg.Servers) == 0 || cfg.Check == nil || cfg.Dial == nil {
		return nil, errors.New("make a balancer: servers, a check and a way to connect are needed")
	}
	if cfg.Period == 0 {
		cfg.Period = defaultPeriod
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = defaultTimeout
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Balancer{
		cfg: cfg, suspect: make(chan struct{}, 1), found: make(chan struct{}),
		open: map[string]map[net.Conn]struct{}{},
	}, nil
}

// Run looks at the servers until ctx ends.
func (b *Balancer) Run(ctx context.Context) {
	first := b.first(ctx)
	if first == "" {
		return
	}
	b.use(first)
	ticker := time.NewTicker(b.cfg.Period)
	defer ticker.Stop()
	for rounds := 1; ; rounds++ {
		select {
		case <-ctx.Done():
			return
		case <-b.suspect:
			b.lookAtCurrent(ctx, b.cfg.Timeout/doubtShare)
		case <-ticker.C:
			if b.lookAtCurrent(ctx, b.cfg.Timeout) {
				b.lookAtOthers(ctx, rounds)
			}
		}
	}
}

// lookAtCurrent asks the server in use whether it is well, and goes over to
// another one if it is not.
func (b *Balancer) lookAtCurrent(ctx context.Context, patience time.Duration) (well bool) {
	current := b.inUse()
	err := b.check(ctx, current, patience)
	if err == nil {
		return true
	}
	if other := b.firstWell(ctx, current); other != "" {
		b.cfg.Log.Warn("a server does not answer; another takes over", "server", current, "error", err, "other", other)
		b.use(other)
		b.cut(current)
	}
	return false
}

// lookAtOthers ends the connections that were made to servers while those were
// in use, and which do not answer now that another does. It goes back to the
// preferred server when that is well; connections to the other one stay.
func (b *Balancer) lookAtOthers(ctx context.Context, rounds int) {
	current, preferred := b.inUse(), b.cfg.Servers[0]
	var looking sync.WaitGroup
	for _, server := range b.cfg.Servers {
		if server == current || !b.connected(server) {
			continue
		}
		looking.Go(func() {
			if err := b.check(ctx, server, b.cfg.Timeout); err != nil && ctx.Err() == nil {
				b.cfg.Log.Warn("a server that was in use does not answer", "server", server, "error", err)
				b.cut(server)
			}
		})
	}
	looking.Wait()
	if current != preferred && rounds%returnPeriods == 0 && b.check(ctx, preferred, b.cfg.Timeout) == nil {
		b.cfg.Log.Info("the preferred server answers again", "server", preferred)
		b.use(preferred)
	}
}

// first waits for the first server that is well, or for the end of ctx. Each is
// asked by itself: one that only listens so far does not answer at all.
func (b *Balancer) first(ctx context.Context) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	well := make(chan string, len(b.cfg.Servers))
	for _, server := range b.cfg.Servers {
		go func() {
			for b.check(ctx, server, b.cfg.Timeout) != nil {
				select {
				case <-time.After(startPause):
				case <-ctx.Done():
					return
				}
			}
			well <- server
		}()
	}
	found := ""
	var late <-chan time.Time
	for {
		select {
		case server := <-well:
			if server == b.cfg.Servers[0] {
				return server
			}
			if found == "" {
				found, late = server, time.After(headStart)
			}
		case <-late:
			return found
		case <-ctx.Done():
			return ""
		}
	}
}

func (b *Balancer) check(ctx context.Context, server string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return b.cfg.Check(ctx, server)
}

// firstWell asks all servers but one at once, and returns the first in order of
// those that are well, or nothing.
func (b *Balancer) firstWell(ctx context.Context, but string) string {
	answers := make([]chan error, len(b.cfg.Servers))
	for i, server := range b.cfg.Servers {
		answers[i] = make(chan error, 1)
		if server == but {
			answers[i] <- errors.New("not asked")
			continue
		}
		go func() { answers[i] <- b.check(ctx, server, b.cfg.Timeout) }()
	}
	for i, server := range b.cfg.Servers {
		if <-answers[i] == nil {
			return server
		}
	}
	return ""
}

func (b *Balancer) inUse() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// connected tells whether there are connections to a server.
func (b *Balancer) connected(server string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.open[server]) > 0
}

func (b *Balancer) use(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current == "" {
		close(b.found)
	}
	b.current = server
}

// cut ends the connections to a server: over a dead network they would hang,
// and their clients with them.
func (b *Balancer) cut(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn := range b.open[server] {
		conn.Close()
	}
}

// Serve passes on the connections of a listener, until that is closed or ctx
// ends. Those that come before a server is well wait.
func (b *Balancer) Serve(ctx context.Context, listener net.Listener) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			go b.pass(ctx, conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept connections at %s: %w", listener.Addr(), err)
		default: // out of descriptors, most likely: others have to end first
			b.cfg.Log.Warn("cannot accept a connection", "error", err)
			select {
			case <-time.After(b.cfg.Period / 10):
			case <-ctx.Done():
			}
		}
	}
}

// pass connects a client with the server in use.
func (b *Balancer) pass(ctx context.Context, client net.Conn) {
	defer client.Close()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	select {
	case <-b.found:
	case <-ctx.Done():
		return
	}
	target := b.inUse()
	dialling, cancel := context.WithTimeout(ctx, b.cfg.Timeout)
	server, err := b.cfg.Dial(dialling, target)
	cancel()
	if err != nil {
		b.doubt() // the client tries again by itself
		return
	}
	defer server.Close()
	if !b.note(target, server) {
		return
	}
	defer b.forget(target, server)
	if endedByServer(client, server) {
		b.doubt()
	}
}

// doubt asks for a look at the server in use.
func (b *Balancer) doubt() {
	select {
	case b.suspect <- struct{}{}:
	default:
	}
}

// note remembers a connection, unless its server is not in use any more.
func (b *Balancer) note(server string, conn net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != server {
		return false
	}
	if b.open[server] == nil {
		b.open[server] = map[net.Conn]struct{}{}
	}
	b.open[server][conn] = struct{}{}
	return true
}

func (b *Balancer) forget(server string, conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open[server], conn)
}

// endedByServer passes bytes on in both directions until the connection ends,
// and tells whether the server was the one to end it: it may have died.
func endedByServer(client, server net.Conn) bool {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(server, client)
		closeWrite(server)
	}()
	_, err := io.Copy(client, server)
	first := false
	select {
	case <-sent:
	default:
		first = !errors.Is(err, net.ErrClosed) // it was not cut
	}
	closeWrite(client)
	if err != nil {
		client.Close()
	}
	<-sent
	return first
}

// closeWrite says that no more comes, which ends the other direction where the
// other side has nothing to add.
func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	conn.Close()
}
