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
	// gather is a reader's pause after it has sent everything, and after an
	// event. A container that writes line by line would wake it for each.
	gather = 3 * time.Millisecond
	// alivePeriod is the time between two KindAlive of an idle stream.
	alivePeriod = 5 * time.Second
	// writerPoll is the time between two looks whether the runtime still has
	// a file open that has been read to its end.
	writerPoll = 20 * time.Millisecond
	// retryPeriod is the time between two attempts to read or open a file.
	retryPeriod = 200 * time.Millisecond
	// readTimeout is the time after which what cannot be read or opened is lost.
	readTimeout = 15 * time.Second
)

// reader sends the log of one container to one client.
type reader struct {
	c     *container
	out   io.Writer
	flush func() error
	// final means that the container has ended, and the stream ends with its
	// log.
	final bool
	// count is the file whose length counts unwritten output; empty where none is
	// counted. unwritten is its length as the client knows it.
	count     string
	unwritten int64

	at      Position
	last    Position // the last one that was sent
	index   int
	lines   lines
	recent  bool      // something was sent since the last pause
	spoke   time.Time // when the client was last sent something
	counted time.Time // when the file count was last looked at
	failing time.Time // since when the file cannot be read; zero while it can
	// unreadable is the last file with a part that was given up.
	unreadable *segment
	blocked    time.Time // since when files could not be opened that were given up
	buffers    *sync.Pool
}

// run sends everything after a position until ctx ends or, where final is set,
// the log is complete.
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
			// The runtime counts before it closes the file.
			if err := r.reportUnwritten(); err != nil {
				return err
			}
			if err := (Frame{Kind: KindEnd}).Write(r.out); err != nil {
				return err
			}
			return r.flush()
		case idle:
			err = r.rest(ctx, changed)
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

// reportUnwritten sends the number of unwritten bytes if it has grown.
func (r *reader) reportUnwritten() error {
	r.counted = time.Now()
	info, err := os.Stat(r.count)
	if err != nil || info.Size() <= r.unwritten {
		return nil // without a file, all was written
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
	moved    state = iota // something was sent, or the next file begun
	idle                  // all was sent
	closing               // all was sent, and the file is to be complete soon
	failing               // a file cannot be read or opened at the moment
	complete              // all was sent, and nothing will follow
)

// step sends what there is at the place reached, or goes on to the next file.
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
			// A writer that was gone before this reading has written all of it.
			n, err = file.ReadAt(buffer[:], r.at.Offset)
			cut = bytes.IndexByte(buffer[:n], '\n') < 0
		}
	}
	if errors.Is(err, os.ErrClosed) {
		return moved, changed, nil // dropped since; the next step counts it
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
	// Another file may just have been made.
	r.c.scan()
	if !r.isLast() {
		r.next()
		return moved, changed, nil
	}
	return r.atEnd(complete, changed)
}

// atEnd returns the state of a reader that has sent all files that are open. If more
// files could not be opened, it waits, and reports a loss after a while. So it does if the
// container has ended and there was no file, because the runtime makes one for each run.
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

// fail waits while a file cannot be read. After a while, it reports a loss, and goes
// on after what the file holds at present.
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
	case s.stamp == "": // no position can name the file
		r.at.Offset = size
	default:
		return moved, r.pass(s, size)
	}
	return moved, r.flush()
}

// isLast reports whether no file follows.
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

// skip sends what was lost with a file that was dropped, and goes on to the next.
// The position after a loss is the end of the file, where a client that continues
// has lost nothing more.
func (r *reader) skip(s *segment) error {
	var parts []LostPart
	if s.taken > r.at.Offset { // some of what was sent did not arrive, either
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

// send sends the records in data, unless they are counted as lost, and reports
// whether there were any.
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
	if counted { // as lost, since the reading
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

// pass sends the position that a segment was passed on to.
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

// rest returns when there may be more to read. It only waits for an event if
// nothing has come during a pause.
func (r *reader) rest(ctx context.Context, changed <-chan struct{}) error {
	if r.recent {
		r.recent = false
		return pause(ctx, gather)
	}
	look, err := r.c.arm()
	switch {
	case err != nil: // the directory is gone, or the kernel cannot watch it
		return r.wait(ctx, changed, scanPeriod)
	case look:
		return nil
	}
	return r.wait(ctx, changed, alivePeriod)
}

// pause waits for a time.
func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(length):
		return nil
	}
}

// wait returns when there may be more to read, or after limit. It tells a client
// that has heard nothing for alivePeriod that the stream lives.
func (r *reader) wait(ctx context.Context, changed <-chan struct{}, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
	case <-changed:
		if err := pause(ctx, gather); err != nil {
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
