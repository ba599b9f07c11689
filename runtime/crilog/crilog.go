// Package crilog writes the output of a container to its log file, in the CRI
// log format. It replaces containerd's logger, which makes a system call for
// each line (containerd/_cri). It knows nothing of containers or rotation.
package crilog

import (
	"bytes"
	"io"
	"sync"
	"time"
)

const (
	// batchSize bounds the records of one write, in bytes. The last of them may
	// exceed it.
	batchSize = 64 << 10
	// keptSize bounds the buffers that are kept for later writes, in bytes.
	keptSize = 4 * batchSize
)

// Events are called by a Logger; all have to be set.
type Events struct {
	// Read is called for each Write, with the number of lines that end in it and the
	// number of bytes.
	Read func(entries, bytes int)
	// Wrote is called with the number of records and bytes of a write.
	Wrote func(records, bytes int)
	// Split is called with the number of records that are parts of longer lines.
	Split func(records int)
	// Failed is called if a write failed, with the number of bytes of the output
	// that are lost.
	Failed func(err error, lost int)
}

// Logger writes one stream of a container to a log. It is an io.WriteCloser.
type Logger struct {
	to      io.Writer
	stream  string
	maxLine int
	events  Events
	done    chan struct{}

	mu     sync.Mutex
	closed bool
	// partial is the beginning of a line whose end has not come.
	partial []byte
	// out holds records to be written, records counts them.
	out     []byte
	records int
	// torn reports whether the log ends in the middle of a record.
	torn bool
}

// New returns a Logger of a stream, "stdout" or "stderr". It cuts lines longer
// than maxLine bytes into several records. It cuts no lines if maxLine is 0 or less.
func New(to io.Writer, stream string, maxLine int, events Events) *Logger {
	return &Logger{to: to, stream: stream, maxLine: maxLine, events: events, done: make(chan struct{})}
}

// Done returns a channel that is closed after the last write.
func (l *Logger) Done() <-chan struct{} { return l.done }

// buffers holds buffers for records, as *[]byte. Loggers share them, because most
// containers are silent most of the time.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// Write writes the records of all lines that end in data. When it returns, the log has
// them, or Failed was called. It fails only after Close: a container does not end because
// its log cannot be written.
func (l *Logger) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, io.ErrClosedPipe
	}
	buffer := buffers.Get().(*[]byte)
	l.out = (*buffer)[:0]
	entries := 0
	for rest := data; len(rest) > 0; entries++ {
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			l.partial = append(l.partial, rest...)
			l.cut()
			break
		}
		line := rest[:end]
		if len(l.partial) > 0 {
			l.partial = append(l.partial, line...)
			line = l.partial
		}
		l.line(bytes.TrimSuffix(line, carriageReturn), 'F')
		l.partial = l.partial[:0]
		rest = rest[end+1:]
	}
	l.flush()
	if cap(l.out) <= keptSize {
		*buffer = l.out
		buffers.Put(buffer)
	}
	l.out = nil
	if len(l.partial) == 0 {
		l.partial = nil
	}
	l.events.Read(entries, len(data))
	return len(data), nil
}

var carriageReturn = []byte("\r")

// Close writes an unfinished last line. It can be called twice.
func (l *Logger) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if len(l.partial) > 0 {
		l.line(l.partial, 'P')
		l.flush()
	}
	l.partial, l.out = nil, nil
	close(l.done)
	return nil
}

// cut adds records of maxLine bytes from the beginning of an unfinished line that is
// longer. A carriage return at its end does not count, because it may end the line.
func (l *Logger) cut() {
	certain := len(bytes.TrimSuffix(l.partial, carriageReturn))
	if l.maxLine <= 0 || certain <= l.maxLine {
		return
	}
	rest := l.partial
	for ; certain > l.maxLine; certain -= l.maxLine {
		l.record(rest[:l.maxLine], 'P')
		rest = rest[l.maxLine:]
		l.events.Split(1)
	}
	l.partial = append(l.partial[:0], rest...)
}

// line adds the records of a line; the last has the tag.
func (l *Logger) line(line []byte, tag byte) {
	for l.maxLine > 0 && len(line) > l.maxLine {
		l.record(line[:l.maxLine], 'P')
		line = line[l.maxLine:]
		l.events.Split(1)
	}
	l.record(line, tag)
}

// record adds a record, and writes all records once they have batchSize bytes.
func (l *Logger) record(text []byte, tag byte) {
	l.out = time.Now().AppendFormat(l.out, time.RFC3339Nano)
	l.out = append(l.out, ' ')
	l.out = append(l.out, l.stream...)
	l.out = append(l.out, ' ', tag, ' ')
	l.out = append(l.out, text...)
	l.out = append(l.out, '\n')
	if l.records++; len(l.out) >= batchSize {
		l.flush()
	}
}

// flush writes the records.
func (l *Logger) flush() {
	if len(l.out) == 0 {
		return
	}
	n, err := 0, l.mend()
	if err == nil {
		if n, err = l.to.Write(l.out); err == nil {
			l.events.Wrote(l.records, n)
		} else {
			l.torn = n > 0 && l.out[n-1] != '\n'
		}
	}
	if err != nil {
		l.events.Failed(err, lost(l.out, n))
	}
	l.out, l.records = l.out[:0], 0
}

// lost returns the bytes of output that are lost if only the first written bytes of
// records are in the log. A reader takes a record that was cut in its text for a whole
// one, and ignores a record that was cut before its text.
func lost(records []byte, written int) int {
	total := 0
	for record := range bytes.Lines(records) {
		fields := bytes.SplitN(record, []byte(" "), 4) // time, stream, tag, text
		text := bytes.TrimSuffix(fields[3], []byte("\n"))
		end := len(record) - 1
		switch start := end - len(text); {
		case written < start:
			total += len(text)
			if fields[2][0] == 'F' {
				total++
			}
		case written < end:
			total += end - written
		}
		written -= len(record)
	}
	return total
}

// mend ends a torn record, so that the next one is not taken for its text.
func (l *Logger) mend() error {
	if !l.torn {
		return nil
	}
	_, err := l.to.Write([]byte{'\n'})
	l.torn = err != nil
	return err
}
