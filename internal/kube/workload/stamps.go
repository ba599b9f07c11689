package workload

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"hash/maphash"
	"io"
	"time"
)

// longestStamp is the longest time at the beginning of a line, in bytes, with the space after
// it: 2006-01-02T15:04:05.000000000+07:00.
const longestStamp = 36

// disorder bounds the difference between a line's time and the earlier time of a line after
// it. containerd takes the times of standard output and standard error before it locks the
// log that both share.
const disorder = 200 * time.Millisecond

// stamps continues a log by the times of its lines, which the kubelet gives. After a break,
// only the lines of the last second with output are read again, or of the last two. So the log
// may have been rotated any number of times before. The API takes whole seconds.
type stamps struct {
	stream *stream
	// since is the beginning of the lines that would be read again, and again counts them.
	// next is the latest second, and later counts the lines since then. next replaces since
	// later, because the kubelet would omit a line before next that is still to come.
	since, next  time.Time
	again, later passedBytes
	// last is the latest time of a line, and second the present line's, in whole seconds; it
	// is zero for a line without a time. begin holds the beginning of a line up to its time,
	// and inLine reports whether the time was read.
	last   time.Time
	second time.Time
	begin  []byte
	inLine bool
	// after is the time of the last line that was passed on before the log was rotated, or
	// zero. known reports whether the present line is not after it.
	after time.Time
	known bool
}

// passedBytes counts bytes that were passed on, with the times of their lines.
type passedBytes struct {
	read int64
	seen maphash.Hash
}

func (p *passedBytes) count(data []byte) {
	_, _ = p.seen.Write(data)
	p.read += int64(len(data))
}

// copy passes on the rest of an answer that begins at s.since.
func (s *stamps) copy(ctx context.Context, which reading, body io.ReadCloser) error {
	log := bufio.NewReaderSize(body, 32<<10)
	err := s.skip(log)
	if errors.Is(err, errRotated) {
		s.stream.opened, s.stream.cut = true, true
		s.stream.lose("its beginning was rotated away while it was read")
		// The rest of an unfinished line is lost, too.
		s.after, s.inLine, s.second = s.last, false, s.since
		s.again, s.later = passedBytes{}, passedBytes{}
		rest, openErr := s.stream.open(ctx, which)
		if openErr != nil {
			return openErr
		}
		defer rest.Close()
		log, err = bufio.NewReaderSize(rest, 32<<10), nil
	}
	if err == nil {
		_, err = io.Copy(s, log)
	}
	if err == nil && s.stream.earlier > 0 {
		s.stream.earlier = 0
		s.stream.lose("its beginning was rotated away while it was read")
	}
	if !errors.Is(err, errUnopened) {
		s.stream.opened, s.stream.cut = true, err != nil && ctx.Err() == nil
	}
	return err
}

// skip reads the bytes that were passed on. It returns errRotated if there are others, or if
// the kubelet omits the last line, because its time is earlier than since.
func (s *stamps) skip(log *bufio.Reader) error {
	s.begin = nil
	if s.second.Before(s.since) {
		return errRotated
	}
	err := s.skipPart(log)
	if err == nil {
		var again maphash.Hash
		again.SetSeed(s.again.seen.Seed())
		_, err = io.CopyN(&again, log, s.again.read)
		if err == nil && again.Sum64() != s.again.seen.Sum64() {
			return errRotated
		}
	}
	if errors.Is(err, io.EOF) {
		return errRotated
	}
	return err
}

// skipPart skips the end of a line that began before since, at the beginning of an answer. The
// runtime divides a line of over 16 KiB into parts with separate times. The kubelet gives the
// time of a part only at the beginning of a line.
func (s *stamps) skipPart(log *bufio.Reader) error {
	begin, err := log.Peek(int(min(s.again.read, longestStamp)))
	if err != nil || len(begin) == 0 {
		return err
	}
	text, _, _ := bytes.Cut(begin, []byte(" "))
	if stamp, err := time.Parse(time.RFC3339Nano, string(text)); err == nil && !stamp.Before(s.since) {
		return nil
	}
	err = bufio.ErrBufferFull
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = log.ReadSlice('\n')
	}
	return err
}

// Write passes on lines without their times.
func (s *stamps) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		if !s.inLine {
			rest = s.readStamp(rest)
			continue
		}
		line := rest
		if end := bytes.IndexByte(rest, '\n'); end >= 0 {
			line, s.inLine = rest[:end+1], false
		}
		rest = rest[len(line):]
		s.count(line)
		if s.known {
			continue
		}
		if err := s.stream.writeLater(line); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}

// readStamp reads the time at the beginning of a line, or a part of it, and returns the rest.
func (s *stamps) readStamp(data []byte) (rest []byte) {
	end := bytes.IndexByte(data, ' ')
	if end < 0 && len(s.begin)+len(data) < longestStamp {
		s.begin = append(s.begin, data...)
		return nil
	}
	s.begin, rest = append(s.begin, data[:end+1]...), data[end+1:]
	stamp, err := time.Parse(time.RFC3339Nano, string(bytes.TrimSuffix(s.begin, []byte(" "))))
	if err == nil {
		s.advance(stamp)
		s.known = !s.after.IsZero() && !stamp.After(s.after)
		s.count(s.begin)
	} else {
		rest = append(s.begin, rest...) // a line without a time
		s.second, s.known = time.Time{}, false
	}
	s.begin, s.inLine = nil, true
	return rest
}

// advance moves since and next to the time of a new line.
func (s *stamps) advance(stamp time.Time) {
	if stamp.After(s.last) {
		s.last = stamp
	}
	s.settle()
	s.second = stamp.Truncate(time.Second)
	if s.second.After(s.next) {
		s.next, s.later = s.second, passedBytes{}
		s.settle()
	}
}

// settle replaces since by next when no line before next is expected.
func (s *stamps) settle() {
	if s.last.Sub(s.next) >= disorder {
		s.since, s.again = s.next, s.later
	}
}

// count counts a part of the present line where the kubelet would give it again.
func (s *stamps) count(data []byte) {
	if !s.second.Before(s.since) {
		s.again.count(data)
	}
	if !s.second.Before(s.next) {
		s.later.count(data)
	}
}

// writeLater passes on what another process has not passed on.
func (s *stream) writeLater(data []byte) error {
	if passed := min(s.earlier, int64(len(data))); passed > 0 {
		s.mu.Lock()
		s.copied += passed
		s.mu.Unlock()
		if s.first.IsZero() {
			s.first = time.Now()
		}
		s.earlier -= passed
		data = data[passed:]
	}
	if len(data) == 0 {
		return nil
	}
	_, err := s.Write(data)
	return err
}
