// Package balancer forwards connections of a node to one of several equivalent
// servers: to the preferred one while it is healthy, otherwise to another. It does
// not look at the bytes. The caller supplies the health check.
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
	// defaultPeriod is the time between health checks of the servers that have
	// connections. The server in use is also checked after a connection breaks.
	defaultPeriod = time.Second
	// defaultTimeout allows for a machine whose CPUs are all busy. A server that
	// exceeds it stays in use if no other one answers.
	defaultTimeout = 2 * time.Second
	// suspectShare divides the timeout for a check after a connection broke.
	suspectShare = 4
	// returnPeriods is the number of periods between checks of a preferred server
	// that is not in use.
	returnPeriods = 4
	// firstPause is the time between checks until a first server is healthy. The
	// preferred one is chosen if it follows within headStart.
	firstPause = 20 * time.Millisecond
	headStart  = 300 * time.Millisecond
)

// Config configures a Balancer.
type Config struct {
	// Servers are addresses, the preferred one first.
	Servers []string
	// Check returns nil if a server is healthy.
	Check func(ctx context.Context, server string) error
	// Dial connects to a server.
	Dial func(ctx context.Context, server string) (net.Conn, error)
	// Period and Timeout default to 1 s and 2 s.
	Period, Timeout time.Duration
	Log             *slog.Logger
}

// Balancer forwards connections. Make one with New.
type Balancer struct {
	cfg Config
	// suspect requests a check of the server in use.
	suspect chan struct{}

	mu sync.Mutex
	// current is the server in use. It is empty until one is healthy.
	current string
	// found is closed when current is set.
	found chan struct{}
	// open holds the connections of each server.
	open map[string]map[net.Conn]struct{}
}

// New returns a Balancer, which forwards nothing until Run finds a healthy server. It
// returns an error if cfg lacks Servers, Check or Dial.
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

// Run checks the servers until ctx ends.
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
			b.checkCurrent(ctx, b.cfg.Timeout/suspectShare)
		case <-ticker.C:
			if b.checkCurrent(ctx, b.cfg.Timeout) {
				b.checkOthers(ctx, rounds)
			}
		}
	}
}

// checkCurrent checks the server in use, and reports whether it is healthy. If not, it
// changes to another healthy server, if there is one.
func (b *Balancer) checkCurrent(ctx context.Context, timeout time.Duration) (healthy bool) {
	current := b.inUse()
	err := b.check(ctx, current, timeout)
	if err == nil {
		return true
	}
	if other := b.firstHealthy(ctx, current); other != "" {
		b.cfg.Log.Warn("a server does not answer; another takes over", "server", current, "error", err, "other", other)
		b.use(other)
		b.cut(current)
	}
	return false
}

// checkOthers ends connections to servers that were in use earlier and do not answer
// any more. In every returnPeriods-th round, it also checks the preferred server, and
// returns to it if it is healthy. Connections to the other server stay.
func (b *Balancer) checkOthers(ctx context.Context, rounds int) {
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

// first waits for a healthy server and returns it, or "" if ctx ends. It checks the servers
// independently, because a server that already listens may not answer yet.
func (b *Balancer) first(ctx context.Context) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	healthy := make(chan string, len(b.cfg.Servers))
	for _, server := range b.cfg.Servers {
		go func() {
			for b.check(ctx, server, b.cfg.Timeout) != nil {
				select {
				case <-time.After(firstPause):
				case <-ctx.Done():
					return
				}
			}
			healthy <- server
		}()
	}
	found := ""
	var late <-chan time.Time
	for {
		select {
		case server := <-healthy:
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

func (b *Balancer) check(ctx context.Context, server string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return b.cfg.Check(ctx, server)
}

// firstHealthy checks all servers but one at the same time, and returns the first
// healthy one in order, or "".
func (b *Balancer) firstHealthy(ctx context.Context, but string) string {
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

// connected reports whether a server has connections.
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

// cut ends the connections to a server. Over a dead network, the connections and their
// clients would hang.
func (b *Balancer) cut(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn := range b.open[server] {
		conn.Close()
	}
}

// Serve forwards the connections of a listener until ctx ends, and then returns nil. The
// connections wait until a server is healthy. Serve returns an error if the listener is
// closed earlier.
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
		default: // probably no descriptor is free until another connection ends
			b.cfg.Log.Warn("cannot accept a connection", "error", err)
			select {
			case <-time.After(b.cfg.Period / 10):
			case <-ctx.Done():
			}
		}
	}
}

// pass connects a client to the server in use, and copies until the connection ends.
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
		b.requestCheck() // the client tries again by itself
		return
	}
	defer server.Close()
	if !b.add(target, server) {
		return
	}
	defer b.remove(target, server)
	if endedByServer(client, server) {
		b.requestCheck()
	}
}

// requestCheck requests a check of the server in use.
func (b *Balancer) requestCheck() {
	select {
	case b.suspect <- struct{}{}:
	default:
	}
}

// add records a connection, and returns false if its server is not in use any more.
func (b *Balancer) add(server string, conn net.Conn) bool {
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

func (b *Balancer) remove(server string, conn net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.open[server], conn)
}

// endedByServer copies bytes in both directions until the connection ends. It reports
// whether the server ended it first, because then the server may have died.
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

// closeWrite ends one direction, or the whole connection if conn cannot do that.
func closeWrite(conn net.Conn) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		return
	}
	conn.Close()
}
