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
	buffers *sync.Pool
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
		if err := WriteJSON(r.out, KindLoss, Loss{}); err != nil {
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
	complete              // all was sent, and nothing will follow
)

// step sends what there is at the place reached, or goes on to the next file.
func (r *reader) step() (state, <-chan struct{}, error) {
	r.c.mu.Lock()
	changed := r.c.changed
	if r.index >= len(r.c.segments) {
		r.c.scanLocked()
	}
	if r.index >= len(r.c.segments) {
		r.c.mu.Unlock()
		if r.final {
			return complete, changed, nil
		}
		return idle, changed, nil
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
	if errors.Is(err, os.ErrClosed) {
		return moved, changed, nil // dropped since; the next step counts it
	}
	cut := bytes.IndexByte(buffer[:n], '\n') < 0
	if cut {
		last = r.isLast()
		if ended = (!last || r.final) && !s.written(); ended {
			// A writer that was gone before this reading has written all of it.
			if n, err = file.ReadAt(buffer[:], r.at.Offset); errors.Is(err, os.ErrClosed) {
				return moved, changed, nil
			}
			cut = bytes.IndexByte(buffer[:n], '\n') < 0
		}
	}
	if n > 0 {
		sent, err := r.send(s, buffer[:n], cut && (ended || n == chunk))
		if sent || err != nil {
			return moved, changed, err
		}
	}
	switch {
	case !ended && (!last || r.final):
		return closing, changed, nil
	case !ended:
		return idle, changed, nil
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
	return complete, changed, nil
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
	if s.taken > r.at.Offset { // some of what was sent did not arrive, either
		if err := WriteJSON(r.out, KindLoss, Loss{}); err != nil {
			return err
		}
	}
	if s.lost != (Loss{}) && r.at.Offset < s.end {
		if err := WriteJSON(r.out, KindLoss, s.lost); err != nil {
			return err
		}
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
	r.c.mu.Lock()
	s.readStamp()
	r.at = Position{Generation: s.generation, Segment: s.stamp, Offset: r.at.Offset + b.size}
	s.sent = max(s.sent, r.at.Offset)
	s.sentAt = time.Now()
	r.last = r.at
	p := Progress{r.at, r.c.behind(r.index, r.at.Offset), r.unwritten}
	r.c.mu.Unlock()
	if err := WriteJSON(r.out, KindPosition, p); err != nil {
		return false, err
	}
	r.spoke, r.recent = time.Now(), true
	return true, r.flush()
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
