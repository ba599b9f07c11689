package rendezvous

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// inboxSize limits the messages that wait for Receive before the sender blocks.
	inboxSize = 16
	// closeWait bounds the time for a farewell.
	closeWait = time.Second
	// Within Config.Loss, a peer checks ticksPerLoss times for silence, and sends
	// beatsPerLoss heartbeats.
	ticksPerLoss = 12
	beatsPerLoss = 4
)

// ClosedError reports that one side closed the connection.
type ClosedError struct {
	Node string
	// Reason is the argument of Close.
	Reason string
	// Here is set if this side closed the connection.
	Here bool
}

func (e *ClosedError) Error() string {
	if e.Here {
		return fmt.Sprintf("the connection to node %s was closed: %s", e.Node, e.Reason)
	}
	return fmt.Sprintf("node %s closed the connection: %s", e.Node, e.Reason)
}

// LostError reports that the connection ended without a farewell.
type LostError struct {
	Node  string
	Cause error
}

func (e *LostError) Error() string { return fmt.Sprintf("lost node %s: %v", e.Node, e.Cause) }

func (e *LostError) Unwrap() error { return e.Cause }

// Silent reports whether the peer fell silent, so that it may be alive behind a
// broken network. Otherwise its end of the connection was closed.
func (e *LostError) Silent() bool {
	return errors.Is(e.Cause, errSilent) || errors.Is(e.Cause, syscall.ETIMEDOUT) ||
		errors.Is(e.Cause, syscall.EHOSTUNREACH) || errors.Is(e.Cause, syscall.ENETUNREACH)
}

// Peer is the connection to another node of the step, after both sides were
// authenticated. All methods are safe for concurrent use.
type Peer struct {
	name string
	conn *tls.Conn
	cfg  Config

	inbox    chan []byte   // closed after the last message
	writing  chan struct{} // held by the writer
	leaving  chan struct{} // closed by Close, after farewell is set
	done     chan struct{} // closed at the end, after err is set
	err      error
	farewell *ClosedError
	end      sync.Once
	leave    sync.Once
	running  sync.WaitGroup

	received atomic.Uint64 // counts the reads that returned data
	stalled  atomic.Bool   // set while the reader waits for Receive, not for the peer
}

// newPeer takes over an authenticated connection. It sends the greeting, if any,
// before anything else.
func newPeer(name string, conn *tls.Conn, cfg Config, greeting []byte) *Peer {
	p := &Peer{
		name: name, conn: conn, cfg: cfg,
		inbox: make(chan []byte, inboxSize), writing: make(chan struct{}, 1),
		leaving: make(chan struct{}), done: make(chan struct{}),
	}
	p.writing <- struct{}{}
	p.running.Go(func() {
		defer func() { <-p.writing }()
		// If this fails, reading fails, too, and reports the error.
		if greeting != nil {
			_, _ = p.conn.Write(greeting)
		}
	})
	p.running.Go(p.read)
	p.running.Go(p.beat)
	p.running.Go(p.watch)
	return p
}

// Name returns the name of the node at the other end.
func (p *Peer) Name() string { return p.name }

// RemoteAddr returns the other end's address and port.
func (p *Peer) RemoteAddr() net.Addr { return p.conn.RemoteAddr() }

// LocalAddr returns this host's address on the connection.
func (p *Peer) LocalAddr() net.Addr { return p.conn.LocalAddr() }

// Done returns a channel that is closed when the connection has ended; Err then
// returns the reason.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Err returns a *ClosedError or a *LostError, or nil while the connection is open.
func (p *Peer) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Send sends a message as JSON. It waits while the other side does not receive. If
// ctx ends in the middle of a message, the connection is lost. Success does not
// mean that the message arrived.
func (p *Peer) Send(ctx context.Context, message any) error {
	content, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message for node %s: %w", p.name, err)
	}
	if len(content) > p.cfg.MaxMessage {
		return fmt.Errorf("send a message to node %s: it has %d bytes, at most %d are allowed", p.name, len(content), p.cfg.MaxMessage)
	}
	select {
	case <-p.leaving:
		return p.notSent(p.farewell)
	default:
	}
	select {
	case p.writing <- struct{}{}:
	case <-ctx.Done():
		return p.notSent(context.Cause(ctx))
	case <-p.done:
		return p.notSent(p.err)
	}
	defer func() { <-p.writing }()
	// Either the write completes first, or ctx ends first.
	var settled atomic.Bool
	stop := context.AfterFunc(ctx, func() {
		if settled.CompareAndSwap(false, true) {
			p.finish(&LostError{p.name, fmt.Errorf("a message was given up halfway: %w", context.Cause(ctx))})
		}
	})
	defer stop()
	_, err = p.conn.Write(frame(frameMessage, content))
	if !settled.CompareAndSwap(false, true) || err != nil {
		p.finish(&LostError{p.name, err})
		return p.notSent(p.err)
	}
	return nil
}

func (p *Peer) notSent(cause error) error {
	return fmt.Errorf("send a message to node %s: %w", p.name, cause)
}

// Receive waits for the next message and decodes it. A malformed message is an
// error, but the connection stays open. After the last message, Receive returns a
// *ClosedError or *LostError. If this side does not receive, the other side blocks.
func (p *Peer) Receive(ctx context.Context, into any) error {
	select {
	case content, ok := <-p.inbox:
		if !ok {
			<-p.done
			return p.err
		}
		if err := json.Unmarshal(content, into); err != nil {
			return fmt.Errorf("read a message of node %s: %w", p.name, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a message of node %s: %w", p.name, context.Cause(ctx))
	}
}

// Close sends the reason to the other side, and ends the connection once earlier
// messages have been sent. It reports whether the other side has received the
// reason; a second call always returns false. It takes at most a few seconds.
func (p *Peer) Close(reason string) (received bool) {
	p.leave.Do(func() {
		p.farewell = &ClosedError{Node: p.name, Reason: reason, Here: true}
		close(p.leaving)
		timeout := time.NewTimer(closeWait)
		defer timeout.Stop()
		select {
		case p.writing <- struct{}{}:
			_ = p.conn.SetWriteDeadline(time.Now().Add(closeWait)) // if this fails, Write fails, too
			if _, err := p.conn.Write(frame(frameClose, []byte(shorten(reason)))); err == nil {
				// Wait for the other side to close. Otherwise data that it has
				// written meanwhile would cause a reset, and it could lose the
				// reason.
				_ = p.conn.CloseWrite()
				select {
				case <-p.done:
					received = errors.Is(p.err, p.farewell)
				case <-timeout.C:
				}
			}
			<-p.writing
		case <-timeout.C: // a write is blocked
		case <-p.done:
		}
		p.finish(p.farewell)
	})
	p.running.Wait()
	return received
}

// Drop ends the connection without a farewell, as if this node were lost. The other
// side then looks for this node or another one.
func (p *Peer) Drop() {
	p.finish(&ClosedError{Node: p.name, Reason: "dropped", Here: true})
	p.running.Wait()
}

// finish ends the connection. Only the first reason counts.
func (p *Peer) finish(reason error) {
	p.end.Do(func() {
		p.err = reason
		close(p.done)
		// Not the TLS connection's Close, which waits to send a message.
		p.conn.NetConn().Close()
	})
}

// read handles incoming frames until the connection ends.
func (p *Peer) read() {
	defer close(p.inbox)
	reader := bufio.NewReader(&countingReader{p})
	for {
		kind, content, err := readFrame(reader, max(p.cfg.MaxMessage, maxReason))
		if err != nil {
			p.finish(p.ended(err))
			return
		}
		switch kind {
		case frameBeat:
		case frameMessage:
			p.stalled.Store(true)
			select {
			case p.inbox <- content:
			case <-p.leaving:
			case <-p.done:
				return
			}
			p.stalled.Store(false)
		case frameClose:
			p.finish(&ClosedError{Node: p.name, Reason: string(content)})
			return
		default:
			p.finish(&LostError{p.name, fmt.Errorf("it sent a frame of the unknown kind %q", kind)})
			return
		}
	}
}

func (p *Peer) ended(err error) error {
	select {
	case <-p.leaving:
		return p.farewell
	default:
	}
	return &LostError{p.name, fmt.Errorf("the connection broke (%w): its processes or its node died", err)}
}

// countingReader counts reads that return data. So a long message shows that the peer
// is alive even before its last byte has arrived.
type countingReader struct{ *Peer }

func (r *countingReader) Read(into []byte) (int, error) {
	n, err := r.conn.Read(into)
	if n > 0 {
		r.received.Add(1)
	}
	return n, err
}

// beat sends heartbeats. It omits one while a message is being written, which is as
// good a sign of life.
func (p *Peer) beat() {
	ticker := time.NewTicker(p.cfg.Loss / beatsPerLoss)
	defer ticker.Stop()
	for {
		select {
		case <-p.done:
			return
		case <-p.leaving:
			return
		case <-ticker.C:
		}
		select {
		case p.writing <- struct{}{}:
			_, err := p.conn.Write(frame(frameBeat, nil))
			<-p.writing
			// The reader ends the connection, after the data that arrived before
			// the error. This data may contain the other side's farewell.
			if err != nil {
				return
			}
		default:
		}
	}
}

var errSilent = errors.New("silent")

// watch ends the connection when the peer has been silent for Config.Loss. It counts
// only time during which this process ran. When Slurm suspends a job, all tasks stop
// and continue together, and a deadline by the clock would end all connections.
func (p *Peer) watch() {
	interval := p.cfg.Loss / ticksPerLoss
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last, received, silence := time.Now(), p.received.Load(), time.Duration(0)
	for {
		select {
		case <-p.done:
			return
		case <-ticker.C:
		}
		now := time.Now()
		silence += min(now.Sub(last), 2*interval)
		last = now
		if count := p.received.Load(); count != received || p.stalled.Load() {
			received, silence = count, 0
		}
		// One interval early, so that the loss is noticed within Loss.
		if silence+interval > p.cfg.Loss {
			p.finish(&LostError{p.name, fmt.Errorf("%w: no message came for %s; its processes, its node or the network between died", errSilent, p.cfg.Loss)})
			return
		}
	}
}
