package containerlog

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

const (
	// chunk is the size of one read of a file, in bytes.
	chunk = 256 << 10
	// batchDelay is a reader's pause after it has sent everything, and after an event.
	// Without it, the reader would send each line of the container separately.
	batchDelay = 3 * time.Millisecond
	// alivePeriod is the time between two KindAlive frames of an idle stream.
	alivePeriod = 5 * time.Second
	// writerPoll is the interval of the checks whether the runtime still has a file open
	// whose content was sent completely.
	writerPoll = 20 * time.Millisecond
	// retryPeriod is the time between two attempts to read or open a file.
	retryPeriod = 200 * time.Millisecond
	// readTimeout limits the attempts. After it, the file's content is reported as
	// lost.
	readTimeout = 15 * time.Second
)

// reader sends the log of one container to one client.
type reader struct {
	c     *container
	out   io.Writer
	flush func() error
	// final reports whether the container has ended, so that the stream ends with
	// its log.
	final bool
	// unwrittenFile is a file whose length is the number of bytes that the runtime
	// could not write to the log. It is empty if they are not counted. unwritten is
	// the number that was last sent to the client.
	unwrittenFile string
	unwritten     int64

	at      Position  // of the next byte to read
	last    Position  // the last one that was sent
	index   int       // of the current file in container.segments
	lines   lines     // the state of the decoder
	recent  bool      // output was sent since the last pause
	spoke   time.Time // time of the last frame to the client
	counted time.Time // time of the last check of unwrittenFile
	failing time.Time // when reads of the current file began to fail; zero if they succeed
	// unreadable is the last file with an unreadable part that was reported as lost.
	unreadable *segment
	// blocked is the container.blockedSince of the last reported loss.
	blocked time.Time
	buffers *sync.Pool
}

// run sends the log after a position. It returns nil after the end of a complete log,
// the cause of ctx when ctx ends, or the error of a write to the client.
func (r *reader) run(ctx context.Context, from Position) error {
	r.c.mu.Lock()
	r.c.scanLocked()
	r.c.readers++
	index, offset, lost := r.c.start(from)
	r.at, r.last, r.index = from, from, index
	if lost || from == (Position{}) {
		r.at = Position{}
	}
	r.at.Offset = offset
	r.c.mu.Unlock()
	defer func() {
		r.c.mu.Lock()
		r.c.readers--
		r.c.unread = time.Now()
		r.c.mu.Unlock()
	}()
	if lost {
		if err := WriteJSON(r.out, KindLoss, LostPart{}); err != nil {
			return err
		}
	}
	if err := r.flush(); err != nil {
		return err
	}
	r.spoke = time.Now()
	for {
		if time.Since(r.counted) >= alivePeriod {
			if err := r.reportUnwritten(); err != nil {
				return err
			}
		}
		state, changed, err := r.step()
		if err != nil {
			return err
		}
		switch state {
		case complete:
			// The runtime updates unwrittenFile before it closes the log.
			if err := r.reportUnwritten(); err != nil {
				return err
			}
			if err := (Frame{Kind: KindEnd}).Write(r.out); err != nil {
				return err
			}
			return r.flush()
		case idle:
			err = r.awaitWrite(ctx, changed)
		case closing:
			err = r.wait(ctx, changed, writerPoll)
		case failing:
			err = r.wait(ctx, changed, retryPeriod)
		}
		if err != nil {
			return err
		}
	}
}

// reportUnwritten sends the number of bytes that the runtime could not write, if it
// has grown.
func (r *reader) reportUnwritten() error {
	r.counted = time.Now()
	info, err := os.Stat(r.unwrittenFile)
	if err != nil || info.Size() <= r.unwritten {
		return nil // the runtime creates the file with the first failed write
	}
	r.unwritten = info.Size()
	r.c.mu.Lock()
	behind := r.c.behind(r.index, r.at.Offset)
	r.c.mu.Unlock()
	if err := WriteJSON(r.out, KindPosition, Progress{r.last, behind, r.unwritten}); err != nil {
		return err
	}
	return r.flush()
}

// state is the result of a step.
type state int

const (
	moved    state = iota // step made progress; call it again at once
	idle                  // everything written so far was sent
	closing               // everything was sent, but the runtime has not closed the file
	failing               // a file cannot be read or opened at the moment
	complete              // everything was sent, and nothing will follow
)

// step sends the content after the current position, or goes on to the next file. The
// channel is closed when there may be more to read. The error is that of a write to the
// client.
func (r *reader) step() (state, <-chan struct{}, error) {
	r.c.mu.Lock()
	changed, final := r.c.changed, r.final || r.c.ended
	if r.index >= len(r.c.segments) || r.c.blocked != nil {
		r.c.scanLocked()
	}
	if r.index >= len(r.c.segments) {
		r.c.mu.Unlock()
		if final {
			return r.atEnd(complete, changed)
		}
		return r.atEnd(idle, changed)
	}
	s := r.c.segments[r.index]
	file, compressed := s.file, s.compressed
	r.c.mu.Unlock()
	if compressed && file != nil {
		r.c.unpack(s)
		return moved, changed, nil
	}
	if file == nil {
		return moved, changed, r.skip(s)
	}
	buffer := r.buffers.Get().(*[chunk]byte)
	defer r.buffers.Put(buffer)
	last, ended := false, false
	n, err := file.ReadAt(buffer[:], r.at.Offset)
	cut := bytes.IndexByte(buffer[:n], '\n') < 0
	if cut && errors.Is(err, io.EOF) {
		last = r.isLast()
		if ended = (!last || final) && !s.written(); ended {
			// The writer has closed the file, so this second read returns the rest.
			n, err = file.ReadAt(buffer[:], r.at.Offset)
			cut = bytes.IndexByte(buffer[:n], '\n') < 0
		}
	}
	if errors.Is(err, os.ErrClosed) {
		return moved, changed, nil // dropped meanwhile; the next step reports the loss
	}
	if cut && err != nil && !errors.Is(err, io.EOF) {
		state, err := r.fail(s, err)
		return state, changed, err
	}
	r.failing = time.Time{}
	if n > 0 {
		sent, err := r.send(s, buffer[:n], cut && (ended || n == chunk))
		if sent || err != nil {
			return moved, changed, err
		}
	}
	switch {
	case !ended && (!last || final):
		return closing, changed, nil
	case !ended:
		return r.atEnd(idle, changed)
	case !last:
		r.next()
		return moved, changed, nil
	}
	// The runtime may just have created another file.
	r.c.scan()
	if !r.isLast() {
		r.next()
		return moved, changed, nil
	}
	return r.atEnd(complete, changed)
}

// atEnd returns the state of a reader that has sent all open files. While other files
// cannot be opened, the state is failing; after readTimeout, atEnd reports a loss. It also
// reports a loss if the container has ended without a file, because the runtime makes a file
// for each run.
func (r *reader) atEnd(s state, changed <-chan struct{}) (state, <-chan struct{}, error) {
	r.c.mu.Lock()
	cause, since, readTimeout := r.c.blocked, r.c.blockedSince, r.c.readTimeout
	unseen := s == complete && r.last == (Position{}) && len(r.c.segments) == 0
	r.c.mu.Unlock()
	switch {
	case cause == nil && unseen:
		if err := WriteJSON(r.out, KindLoss, LostPart{Cause: errUnseen.Error()}); err != nil {
			return s, changed, err
		}
		return s, changed, r.flush()
	case cause == nil, s == complete && since.Equal(r.blocked):
		return s, changed, nil
	case since.Equal(r.blocked), time.Since(since) < readTimeout:
		return failing, changed, nil
	}
	r.blocked = since
	if err := WriteJSON(r.out, KindLoss, LostPart{Cause: cause.Error()}); err != nil {
		return s, changed, err
	}
	return s, changed, r.flush()
}

// fail returns the state of a reader whose current file cannot be read: failing until
// readTimeout. After that, it reports a loss and skips the present content of the file.
func (r *reader) fail(s *segment, cause error) (state, error) {
	if r.failing.IsZero() {
		r.failing = time.Now()
	}
	r.c.mu.Lock()
	readTimeout := r.c.readTimeout
	r.c.mu.Unlock()
	if time.Since(r.failing) < readTimeout {
		return failing, nil
	}
	r.failing = time.Time{}
	if r.unreadable != s {
		r.unreadable = s
		if err := WriteJSON(r.out, KindLoss, LostPart{Cause: cause.Error()}); err != nil {
			return moved, err
		}
	}
	r.c.mu.Lock()
	s.readStamp()
	size, _ := s.size()
	r.c.mu.Unlock()
	r.lines = lines{}
	switch {
	case size <= r.at.Offset:
		r.next()
	case s.stamp == "": // a Position needs the time stamp
		r.at.Offset = size
	default:
		return moved, r.pass(s, size)
	}
	return moved, r.flush()
}

// isLast reports whether the current file is the newest one.
func (r *reader) isLast() bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.index == len(r.c.segments)-1
}

// next goes on to the next file.
func (r *reader) next() {
	r.index++
	r.at = Position{}
}

// skip reports what was lost with a dropped file, and goes on to the next. The position
// after the loss is the end of the file, so a client that continues there does not receive
// the same loss again.
func (r *reader) skip(s *segment) error {
	var parts []LostPart
	if s.taken > r.at.Offset { // some of it was sent before, but did not arrive
		parts = append(parts, LostPart{})
	}
	isNew := r.at.Offset < s.end
	if isNew && s.lost != (Loss{}) {
		parts = append(parts, LostPart{s.lost, s.cause})
	}
	if isNew && s.uncounted {
		parts = append(parts, LostPart{Cause: s.cause})
	}
	for _, part := range parts {
		if err := WriteJSON(r.out, KindLoss, part); err != nil {
			return err
		}
	}
	if isNew && (s.lost != (Loss{}) || s.uncounted) && s.stamp != "" {
		r.last = Position{s.generation, s.stamp, s.end}
		r.c.mu.Lock()
		behind := r.c.behind(r.index+1, 0)
		r.c.mu.Unlock()
		if err := WriteJSON(r.out, KindPosition, Progress{r.last, behind, r.unwritten}); err != nil {
			return err
		}
	}
	r.next()
	return r.flush()
}

// send sends the complete records in data, and reports whether there were any. With flush,
// it also sends an incomplete last record. It sends nothing if the file was dropped
// meanwhile, because drop has counted the records as lost.
func (r *reader) send(s *segment, data []byte, flush bool) (bool, error) {
	b := r.lines.decode(data, flush)
	if b.size == 0 {
		return false, nil
	}
	// A slow client blocks the writes, and the file may be dropped meanwhile.
	r.c.mu.Lock()
	counted := s.file == nil
	if !counted {
		s.taken = max(s.taken, r.at.Offset+b.size)
	}
	r.c.mu.Unlock()
	if counted {
		return true, nil
	}
	for _, f := range b.frames {
		if err := f.Write(r.out); err != nil {
			return false, err
		}
	}
	r.recent = true
	return true, r.pass(s, r.at.Offset+b.size)
}

// pass sends the position at an offset of a segment, after the output before it.
func (r *reader) pass(s *segment, offset int64) error {
	r.c.mu.Lock()
	s.readStamp()
	r.at = Position{Generation: s.generation, Segment: s.stamp, Offset: offset}
	s.sent, s.taken = max(s.sent, offset), max(s.taken, offset)
	s.sentAt = time.Now()
	r.last = r.at
	p := Progress{r.at, r.c.behind(r.index, r.at.Offset), r.unwritten}
	r.c.mu.Unlock()
	if err := WriteJSON(r.out, KindPosition, p); err != nil {
		return err
	}
	r.spoke = time.Now()
	return r.flush()
}

// awaitWrite returns when there may be more to read. It first pauses for batchDelay, and
// waits for an event only if nothing was written meanwhile.
func (r *reader) awaitWrite(ctx context.Context, changed <-chan struct{}) error {
	if r.recent {
		r.recent = false
		return pause(ctx, batchDelay)
	}
	again, err := r.c.arm()
	switch {
	case err != nil: // the directory is gone, or the kernel cannot watch it
		return r.wait(ctx, changed, scanPeriod)
	case again:
		return nil
	}
	return r.wait(ctx, changed, alivePeriod)
}

// pause returns nil after a time, or the cause of ctx if ctx ends before.
func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(length):
		return nil
	}
}

// wait returns when there may be more to read, or after limit. Then it sends KindAlive if
// the client has received no frame for alivePeriod. It returns the cause of ctx when ctx
// ends, or the error of a write to the client.
func (r *reader) wait(ctx context.Context, changed <-chan struct{}, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-changed:
		if err := pause(ctx, batchDelay); err != nil {
			return err
		}
	}
	if time.Since(r.spoke) < alivePeriod {
		return nil
	}
	r.spoke = time.Now()
	if err := (Frame{Kind: KindAlive}).Write(r.out); err != nil {
		return err
	}
	return r.flush()
}
