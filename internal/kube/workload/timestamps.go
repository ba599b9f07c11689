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

// maxTimestamp is the length in bytes of the longest timestamp of a line,
// 2006-01-02T15:04:05.000000000+07:00, and the space after it.
const maxTimestamp = 36

// disorder bounds the difference between the timestamp of a line and the earlier timestamp of
// a line after it. containerd takes the times of standard output and standard error before it
// locks the log that both share.
const disorder = 200 * time.Millisecond

// timestamps copies a log whose lines begin with a timestamp from the kubelet. After a break,
// it reads only the lines since the last second with output again, or since the one before,
// because the parameter sinceTime has a resolution of one second. Older lines may have been
// rotated away before.
type timestamps struct {
	stream *stream
	// since is sinceTime of the next request, and again counts the bytes from there on. next
	// is the latest second, and later counts the bytes from there on. next replaces since only
	// after a while, because the kubelet would omit a line before next that is still to come.
	since, next  time.Time
	again, later readBytes
	// last is the latest timestamp, and second that of the current line in whole seconds, or
	// zero if the line has none. begin holds the part of a timestamp that was read, and inLine
	// reports whether the timestamp of the current line is complete.
	last   time.Time
	second time.Time
	begin  []byte
	inLine bool
	// after is the timestamp of the last line before the log was rotated, or zero. known
	// reports whether the current line is not newer, so that it was passed on already.
	after time.Time
	known bool
}

// readBytes counts bytes that were read, timestamps included. seen is their hash.
type readBytes struct {
	read int64
	seen maphash.Hash
}

func (b *readBytes) count(data []byte) {
	_, _ = b.seen.Write(data)
	b.read += int64(len(data))
}

// copy passes on the rest of body, a log that begins at s.since.
func (s *timestamps) copy(ctx context.Context, which reading, body io.ReadCloser) error {
	log := bufio.NewReaderSize(body, 32<<10)
	err := s.skip(log)
	if errors.Is(err, errRotated) {
		s.stream.opened, s.stream.cut = true, true
		s.stream.lose("its beginning was rotated away while it was read")
		// The rest of an unfinished line is lost, too.
		s.after, s.inLine, s.second = s.last, false, s.since
		s.again, s.later = readBytes{}, readBytes{}
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

// skip reads the bytes of log that were read before. It returns errRotated if log begins with
// other bytes, or if the kubelet omits the last line, because its timestamp is before since.
func (s *timestamps) skip(log *bufio.Reader) error {
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

// skipPart skips the end of a line that began before since, at the beginning of log. The
// container runtime divides lines of more than 16 KiB into parts with separate timestamps. The
// kubelet sends only the timestamp of the first part of a line.
func (s *timestamps) skipPart(log *bufio.Reader) error {
	begin, err := log.Peek(int(min(s.again.read, maxTimestamp)))
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

// Write passes on lines without their timestamps.
func (s *timestamps) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		if !s.inLine {
			rest = s.readTimestamp(rest)
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
		if err := s.stream.writeNew(line); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}

// readTimestamp reads the timestamp at the beginning of a line, or a part of it, and returns
// the rest of data.
func (s *timestamps) readTimestamp(data []byte) (rest []byte) {
	end := bytes.IndexByte(data, ' ')
	if end < 0 && len(s.begin)+len(data) < maxTimestamp {
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
		rest = append(s.begin, rest...) // a line without a timestamp
		s.second, s.known = time.Time{}, false
	}
	s.begin, s.inLine = nil, true
	return rest
}

// advance moves since and next to the timestamp of a new line.
func (s *timestamps) advance(stamp time.Time) {
	if stamp.After(s.last) {
		s.last = stamp
	}
	s.settle()
	s.second = stamp.Truncate(time.Second)
	if s.second.After(s.next) {
		s.next, s.later = s.second, readBytes{}
		s.settle()
	}
}

// settle replaces since by next when no line before next is expected.
func (s *timestamps) settle() {
	if s.last.Sub(s.next) >= disorder {
		s.since, s.again = s.next, s.later
	}
}

// count counts a part of the current line where the kubelet would send it again.
func (s *timestamps) count(data []byte) {
	if !s.second.Before(s.since) {
		s.again.count(data)
	}
	if !s.second.Before(s.next) {
		s.later.count(data)
	}
}

// writeNew passes on the part of data that no earlier process has passed on.
func (s *stream) writeNew(data []byte) error {
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
