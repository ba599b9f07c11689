package workload

import (
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

// stamps continues a log by the times of its lines, which the kubelet gives. After a break,
// only the lines of the last second are read again, so that the log may have been rotated any
// number of times before. The API takes whole seconds.
type stamps struct {
	stream *stream
	// since is the beginning of the lines that would be read again. read counts the bytes of
	// these lines that were passed on, with their times, and seen is their hash.
	since time.Time
	read  int64
	seen  maphash.Hash
	// last is the time of the last line. begin holds the beginning of a line up to its time,
	// and inLine reports whether the time was read.
	last   time.Time
	begin  []byte
	inLine bool
	// after is the time of the last line that was passed on before the log was rotated, or
	// zero. known reports whether the present line is not after it.
	after time.Time
	known bool
}

// copy passes on the rest of an answer that begins at s.since.
func (s *stamps) copy(ctx context.Context, which reading, body io.ReadCloser) error {
	err := s.skip(body)
	if errors.Is(err, errRotated) {
		s.stream.opened, s.stream.cut = true, true
		s.stream.lose("its beginning was rotated away while it was read")
		// The rest of an unfinished line is lost, too.
		s.after, s.inLine, s.read = s.last, false, 0
		s.seen.Reset()
		rest, openErr := s.stream.open(ctx, which)
		if openErr != nil {
			return openErr
		}
		defer rest.Close()
		body, err = rest, nil
	}
	if err == nil {
		_, err = io.Copy(s, body)
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

// skip reads the bytes that were passed on. It returns errRotated if there are others.
func (s *stamps) skip(body io.Reader) error {
	s.begin = nil
	var again maphash.Hash
	again.SetSeed(s.seen.Seed())
	_, err := io.CopyN(&again, body, s.read)
	if errors.Is(err, io.EOF) || err == nil && again.Sum64() != s.seen.Sum64() {
		return errRotated
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
		if second := stamp.Truncate(time.Second); second.After(s.since) {
			s.since, s.read = second, 0
			s.seen.Reset()
		}
		s.last, s.known = stamp, !s.after.IsZero() && !stamp.After(s.after)
		s.count(s.begin)
	} else {
		rest = append(s.begin, rest...) // a line without a time
		s.known = false
	}
	s.begin, s.inLine = nil, true
	return rest
}

func (s *stamps) count(data []byte) {
	_, _ = s.seen.Write(data)
	s.read += int64(len(data))
}

// writeLater passes on what another process has not passed on.
func (s *stream) writeLater(data []byte) error {
	if passed := min(s.earlier, int64(len(data))); passed > 0 {
		s.mu.Lock()
		s.copied += passed
		s.mu.Unlock()
		s.earlier -= passed
		data = data[passed:]
	}
	if len(data) == 0 {
		return nil
	}
	_, err := s.Write(data)
	return err
}
