package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// queuedBytes bounds the messages that wait for the reader of standard error.
	queuedBytes = 1 << 20
	// writeWait bounds how long a message holds up the code that reports it. While
	// the reader reads, no message takes that long, so messages keep their order
	// beside the output of other processes.
	writeWait = 500 * time.Millisecond
	// lastWait bounds the wait for the reader at the end of a program that a signal
	// has ended.
	lastWait = 5 * time.Second
)

// messages passes berth's messages on to standard error. If nobody reads it, as with
// "2>&1 | less", they wait in a queue, and a signal or the restart of a role does not
// wait for the reader.
type messages struct {
	to io.Writer

	mu    sync.Mutex
	queue []message
	bytes int
	// omitted counts the lines since the queue was full.
	omitted int
	// late reports whether the reader is too slow. No message waits for the reader then.
	late bool
	// written is closed when the queue becomes empty, and nil while the queue is empty.
	written chan struct{}
}

// message is one or several whole lines. It stays in the queue until it is written.
type message struct {
	to      io.Writer
	text    []byte
	written chan struct{}
}

func newMessages(to io.Writer) *messages { return &messages{to: to} }

// Write implements io.Writer, for whole lines. It reports no error.
func (m *messages) Write(text []byte) (int, error) {
	m.writeTo(m.to, text)
	return len(text), nil
}

// writeTo queues lines for a writer that leads to the same reader, and waits a moment
// until they are written. If the writer refuses them, standard error gets them.
func (m *messages) writeTo(to io.Writer, text []byte) {
	one := message{to, bytes.Clone(text), make(chan struct{})}
	if !m.add(one) {
		return
	}
	limit := time.NewTimer(writeWait)
	defer limit.Stop()
	select {
	case <-one.written:
	case <-limit.C:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.late = m.written != nil
	}
}

// add queues a message, and reports whether to wait for it.
func (m *messages) add(one message) (wait bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.bytes+len(one.text) > queuedBytes {
		m.omitted += bytes.Count(one.text, []byte("\n"))
		return false
	}
	m.reportOmitted()
	m.push(one)
	return !m.late
}

// push appends a message. The caller holds mu.
func (m *messages) push(one message) {
	m.queue = append(m.queue, one)
	m.bytes += len(one.text)
	if m.written == nil {
		m.written = make(chan struct{})
		go m.pass(m.written)
	}
}

// reportOmitted queues a line about omitted lines, if there are any. The caller holds
// mu.
func (m *messages) reportOmitted() {
	if m.omitted > 0 {
		text := fmt.Appendf(nil, "berth: %d lines of messages are omitted here, because nobody read standard error\n", m.omitted)
		m.omitted = 0
		m.push(message{m.to, text, make(chan struct{})})
	}
}

// pass writes messages until there are none.
func (m *messages) pass(written chan struct{}) {
	for {
		m.mu.Lock()
		if len(m.queue) == 0 {
			m.reportOmitted()
		}
		if len(m.queue) == 0 {
			m.late, m.written = false, nil
			close(written)
			m.mu.Unlock()
			return
		}
		one := m.queue[0]
		m.mu.Unlock()
		// Without a standard error there is nobody to notify.
		if _, err := one.to.Write(one.text); err != nil && one.to != m.to {
			_, _ = m.to.Write(one.text)
		}
		m.mu.Lock()
		m.queue = m.queue[1:]
		m.bytes -= len(one.text)
		m.mu.Unlock()
		close(one.written)
	}
}

// finish returns when all messages are written. Once ctx has ended, it waits for
// lastWait at most.
func (m *messages) finish(ctx context.Context) {
	m.mu.Lock()
	written := m.written
	m.mu.Unlock()
	if written == nil {
		return
	}
	select {
	case <-written:
		return
	case <-ctx.Done():
	}
	select {
	case <-written:
	case <-time.After(lastWait):
	}
}
