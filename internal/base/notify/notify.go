// Package notify reports a role's progress to its parent: one JSON object per
// line on an inherited descriptor. It holds the wire format and the writer. The
// role defines what a phase means, and the parent what to do about it.
package notify

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// Kinds of events.
const (
	KindPhase  = "phase"  // a step of the start is done; Name is the step
	KindReady  = "ready"  // the role does its work
	KindAlive  = "alive"  // heartbeat
	KindNotice = "notice" // Name is something that the user should know
	KindFatal  = "fatal"  // the role is about to exit; Error is the reason
	KindYield  = "yield"  // like fatal, but nothing is wrong with the role, which can be started again
)

// period is the time between two heartbeats. A parent should allow several
// periods before it calls a role hung: a loaded node delays a heartbeat.
const period = time.Second

// Event is one line.
type Event struct {
	Event string `json:"event"`
	Name  string `json:"name,omitempty"`
	Error string `json:"error,omitempty"`
	// Counts holds the role's counters since its start, by names that parent and role
	// agree on. Only heartbeats have them.
	Counts map[string]uint64 `json:"counts,omitempty"`
}

// Notifier writes events. Its methods return no error on purpose: a role must not fail
// because its parent does not read, and the end of the parent ends the role in another
// way. All methods may be called concurrently, and on a nil Notifier.
type Notifier struct {
	mu sync.Mutex
	w  io.Writer
	// Counts, if set before Alive, is called at each heartbeat.
	Counts func() map[string]uint64
}

// New returns a Notifier that writes to the descriptor fd. It takes ownership of fd, and
// sets close-on-exec, so that programs of the role do not inherit it. For a negative fd, the
// Notifier discards everything, so that a role can be started by hand.
func New(fd int) *Notifier {
	if fd < 0 {
		return NewWriter(io.Discard)
	}
	syscall.CloseOnExec(fd)
	return NewWriter(os.NewFile(uintptr(fd), "notify"))
}

// NewWriter writes to w, one Write per event.
func NewWriter(w io.Writer) *Notifier { return &Notifier{w: w} }

// Phase reports that the named step of the start is done.
func (n *Notifier) Phase(name string) { n.send(Event{Event: KindPhase, Name: name}) }

// Ready reports that the role does its work.
func (n *Notifier) Ready() { n.send(Event{Event: KindReady}) }

// Notice sends a message for the user. It does not suppress repetitions.
func (n *Notifier) Notice(text string) { n.send(Event{Event: KindNotice, Name: text}) }

// Fatal reports the error that ends the role. It does not end it.
func (n *Notifier) Fatal(err error) { n.send(Event{Event: KindFatal, Error: err.Error()}) }

// Yield reports why the role ends although nothing is wrong with it. It does not end it.
func (n *Notifier) Yield(err error) { n.send(Event{Event: KindYield, Error: err.Error()}) }

// Alive sends a heartbeat each period until ctx ends. A heartbeat must prove more than that
// the runtime schedules goroutines. So Alive calls probe before each heartbeat, with a
// context that ends after one period. While probe blocks or returns errors, Alive sends no
// heartbeat. A nil probe always succeeds.
func (n *Notifier) Alive(ctx context.Context, probe func(context.Context) error) {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if probe != nil {
			probeCtx, cancel := context.WithTimeout(ctx, period)
			err := probe(probeCtx)
			cancel()
			if err != nil {
				continue
			}
		}
		beat := Event{Event: KindAlive}
		if n != nil && n.Counts != nil {
			beat.Counts = n.Counts()
		}
		n.send(beat)
	}
}

func (n *Notifier) send(e Event) {
	if n == nil {
		return
	}
	line, err := json.Marshal(e)
	if err != nil {
		return // an Event always encodes
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	_, _ = n.w.Write(append(line, '\n'))
}

// Read calls handle for each event on r until r ends, and returns nil then. It returns an
// error for a line that is no event.
func Read(r io.Reader, handle func(Event)) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var e Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("decode event %q: %w", lines.Text(), err)
		}
		handle(e)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read events: %w", err)
	}
	return nil
}
