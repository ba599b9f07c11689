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
	// inboxSize limits the messages that may wait for Receive before the sender
	// blocks.
	inboxSize = 16
	// closeWait bounds a farewell.
	closeWait = time.Second
	// A silent peer is looked for ticksPerLoss times within Config.Loss, and
	// sends beatsPerLoss signs of life.
	ticksPerLoss = 12
	beatsPerLoss = 4
)

// ClosedError says that the connection ended on purpose.
type ClosedError struct {
	Node string
	// Reason is the argument of Close.
	Reason string
	// Here: by this side.
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

// Silent reports whether the peer fell silent, and so may be alive behind a
// broken network. Otherwise its end of the connection was closed.
func (e *LostError) Silent() bool {
	return errors.Is(e.Cause, errSilent) || errors.Is(e.Cause, syscall.ETIMEDOUT) ||
		errors.Is(e.Cause, syscall.EHOSTUNREACH) || errors.Is(e.Cause, syscall.ENETUNREACH)
}

// Peer is the connection to another node of the step, after both sides have
// proven themselves. All methods may be called concurrently.
type Peer struct {
	name string
	conn *tls.Conn
	cfg  Config

	inbox    chan []byte   // closed when no more come
	writing  chan struct{} // held by the one who writes
	leaving  chan struct{} // closed by Close, after farewell is set
	done     chan struct{} // closed at the end, after err is set
	err      error
	farewell *ClosedError
	end      sync.Once
	leave    sync.Once
	running  sync.WaitGroup

	heard   atomic.Uint64 // counts what was read
	stalled atomic.Bool   // the reader waits for Receive, not for the peer
}

// newPeer takes over a connection that is proven on both sides. The greeting,
// if there is one, is sent before anything else.
func newPeer(name string, conn *tls.Conn, cfg Config, greeting []byte) *Peer {
	p := &Peer{
		name: name, conn: conn, cfg: cfg,
		inbox: make(chan []byte, inboxSize), writing: make(chan struct{}, 1),
		leaving: make(chan struct{}), done: make(chan struct{}),
	}
	p.writing <- struct{}{}
	p.running.Go(func() {
		defer func() { <-p.writing }()
		// If this fails, reading fails too and reports the error.
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

// Done is closed when the connection has ended; Err then returns the reason.
func (p *Peer) Done() <-chan struct{} { return p.done }

// Err returns a *ClosedError or a *LostError, nil as long as the connection
// lives.
func (p *Peer) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Send sends a message as JSON. It waits while the other side does not
// receive; when ctx ends in the middle of a message, the connection is lost.
// That a message was sent does not mean that it arrived.
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
	// One of the two wins: the write that is complete, or the end of ctx.
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

// Receive waits for the next message and decodes it. A message of the wrong form
// is an error, but the connection stays open. After the last message it returns
// a *ClosedError or *LostError. A side that does not receive makes the other
// side wait.
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

// Close sends the reason to the other side, and ends the connection after
// earlier messages have left. It reports whether the other side has received the
// reason. It takes at most a few seconds, and may be called again.
func (p *Peer) Close(reason string) (heard bool) {
	p.leave.Do(func() {
		p.farewell = &ClosedError{Node: p.name, Reason: reason, Here: true}
		close(p.leaving)
		patience := time.NewTimer(closeWait)
		defer patience.Stop()
		select {
		case p.writing <- struct{}{}:
			_ = p.conn.SetWriteDeadline(time.Now().Add(closeWait)) // fails where Write does
			if _, err := p.conn.Write(frame(frameClose, []byte(shorten(reason)))); err == nil {
				// Without the wait for its answer the other side could lose the
				// reason to a reset, sent for what it has written meanwhile.
				_ = p.conn.CloseWrite()
				select {
				case <-p.done:
					heard = errors.Is(p.err, p.farewell)
				case <-patience.C:
				}
			}
			<-p.writing
		case <-patience.C: // a write hangs
		case <-p.done:
		}
		p.finish(p.farewell)
	})
	p.running.Wait()
	return heard
}

// Drop ends the connection without a word, as if this node were lost: the other
// side is to look for it, or for another.
func (p *Peer) Drop() {
	p.finish(&ClosedError{Node: p.name, Reason: "dropped", Here: true})
	p.running.Wait()
}

// finish ends the connection; the first reason counts.
func (p *Peer) finish(reason error) {
	p.end.Do(func() {
		p.err = reason
		close(p.done)
		// Not the TLS connection's Close, which waits to say goodbye.
		p.conn.NetConn().Close()
	})
}

// read passes on what comes until the end.
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

// countingReader counts what is heard, also in the middle of a long message.
type countingReader struct{ *Peer }

func (r *countingReader) Read(into []byte) (int, error) {
	n, err := r.conn.Read(into)
	if n > 0 {
		r.heard.Add(1)
	}
	return n, err
}

// beat sends signs of life. While something is being written there is no need.
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
			// What has come in before the connection broke is read first: the
			// other side's farewell may be among it.
			if err != nil {
				return
			}
		default:
		}
	}
}

var errSilent = errors.New("silent")

// watch ends the connection after too long a silence. It counts only time in
// which this process ran: when Slurm suspends a job, all tasks stop and go on
// together, and a deadline by the clock would part them all.
func (p *Peer) watch() {
	interval := p.cfg.Loss / ticksPerLoss
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	last, heard, silence := time.Now(), p.heard.Load(), time.Duration(0)
	for {
		select {
		case <-p.done:
			return
		case <-ticker.C:
		}
		now := time.Now()
		silence += min(now.Sub(last), 2*interval)
		last = now
		if count := p.heard.Load(); count != heard || p.stalled.Load() {
			heard, silence = count, 0
		}
		// One interval early, so that it is noticed within Loss.
		if silence+interval > p.cfg.Loss {
			p.finish(&LostError{p.name, fmt.Errorf("%w: nothing was heard for %s; its processes, its node or the network between died", errSilent, p.cfg.Loss)})
			return
		}
	}
}
