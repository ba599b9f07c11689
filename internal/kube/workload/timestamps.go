package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"berth.dev/berth/internal/kube/containerlog"
)

const (
	// maxTimestamp is the length in bytes of the longest timestamp of a line,
	// 2006-01-02T15:04:05.000000000+07:00, and the space after it.
	maxTimestamp = 36
	// resumeMargin is the time from the beginning of a request to the last timestamp. A line may
	// have an earlier timestamp than the line before it: containerd takes the times of standard
	// output and standard error before it locks the log that both share, and a clock may be set
	// back.
	resumeMargin = 10 * time.Second
	// shortAnswers is the number of answers in a row that end before the place reached, and have
	// no later line, after which the log counts as rotated. The API server also ends an answer
	// without an error if the kubelet dies.
	shortAnswers = 3
)

// errShort is the error for an answer that ended before the place reached.
var errShort = errors.New("the log ends too early")

// linePlace is a place in a log whose lines begin with timestamps.
type linePlace struct {
	// Stamp is the timestamp of the line that was read last. Same counts the lines before
	// it with the same timestamp. Bytes counts the bytes that were read of the line, without
	// the timestamp.
	Stamp time.Time `json:"t"`
	Same  int       `json:"s,omitempty"`
	Bytes int64     `json:"b,omitempty"`
	// First is the timestamp of the first line of the run, and Newest the latest one up to the
	// place.
	First  time.Time `json:"f"`
	Newest time.Time `json:"n"`
}

// timestamps copies a log whose lines begin with a timestamp from the kubelet. After a break, it
// requests the lines since shortly before the last one, and continues after that one.
//
// The kubelet serves only the present file of a log. So if the last line is missing, the log was
// rotated, or it belongs to a later run of the container.
type timestamps struct {
	stream *stream
	// at is the place after the bytes that were passed to the stream, and whole the place
	// after the last complete line of them.
	at, whole linePlace

	// recent holds the last timestamps and the numbers of their lines. The lines of a timestamp
	// need not be adjacent, see resumeMargin.
	recent [recentStamps]stampCount
	next   int // the entry of recent to replace

	// The rest is the state of an answer. missing reports whether the line at the place has not
	// been read again yet, and same counts lines like linePlace.Same.
	missing bool
	same    int
	// seen is the latest timestamp while the place was missing.
	seen time.Time
	// begin holds the part of a timestamp that was read. inLine reports whether the timestamp of
	// the current line is complete, and unstamped whether the line has none.
	begin             []byte
	inLine, unstamped bool
	// skip is the number of bytes of the current line that were passed on before.
	skip int64
	// short counts answers that ended with errShort.
	short int
}

// recentStamps is the number of timestamps in recent: more than the lines that are written while a
// line with an earlier timestamp waits for the log.
const recentStamps = 32

type stampCount struct {
	stamp time.Time
	lines int
}

// count counts a new line, and returns the number of earlier lines with its timestamp.
func (s *timestamps) count(stamp time.Time) int {
	if s.recent[0].lines == 0 && !s.at.Stamp.IsZero() { // another process has read that line
		s.recent[0], s.next = stampCount{s.at.Stamp, s.at.Same + 1}, 1
	}
	if !stamp.After(s.at.Newest) {
		for i := range s.recent {
			if s.recent[i].lines > 0 && s.recent[i].stamp.Equal(stamp) {
				s.recent[i].lines++
				return s.recent[i].lines - 1
			}
		}
	}
	s.recent[s.next] = stampCount{stamp, 1}
	s.next = (s.next + 1) % recentStamps
	return 0
}

// isSetBack reports whether the clock was set back before the place. Then a later line may be
// one before the place, or one of a log that was rotated: only a complete answer can tell.
func (s *timestamps) isSetBack() bool { return s.at.Newest.Sub(s.at.Stamp) > resumeMargin }

// since returns the beginning of the next request, or zero for the beginning of the log.
func (s *timestamps) since() time.Time {
	if s.at.Stamp.IsZero() {
		return time.Time{}
	}
	return s.at.Stamp.Add(-resumeMargin)
}

// copy passes on the rest of body, a log that begins at s.since. It may close body.
func (s *timestamps) copy(ctx context.Context, which reading, body io.ReadCloser) error {
	err := s.read(body)
	if errors.Is(err, errRotated) {
		_ = body.Close() // otherwise, the API server would still follow the log for it
		err = s.relocate(ctx, which)
	}
	if !errors.Is(err, errUnopened) {
		s.stream.opened, s.stream.cut = true, err != nil && ctx.Err() == nil
	}
	return err
}

// read passes on what an answer has after the place reached. It returns errRotated if the answer
// does not contain that place.
func (s *timestamps) read(answer io.Reader) error {
	s.missing, s.same, s.seen = !s.at.Stamp.IsZero(), 0, time.Time{}
	s.begin, s.inLine, s.skip = nil, false, 0
	_, err := io.Copy(s, answer)
	if err != nil || !s.missing {
		return err
	}
	if s.short++; s.short < shortAnswers {
		return errShort
	}
	return errRotated
}

// relocate continues where a log does not contain the place reached. If a later run of the
// container has begun, the kubelet serves the log as the previous one, perhaps before the API
// server knows about that run. Otherwise, the log was rotated.
func (s *timestamps) relocate(ctx context.Context, which reading) error {
	if rotated, err := s.readPrevious(ctx, which); !rotated {
		return err
	}
	s.stream.foreign, s.short = 0, 0
	s.stream.loseMaybe("its log was rotated while it was not read")
	s.at, s.recent, s.next = linePlace{First: s.at.First}, [recentStamps]stampCount{}, 0
	log, err := s.stream.open(ctx, which)
	if err != nil {
		return err
	}
	defer log.Close()
	return s.read(log)
}

// readPrevious passes on the rest of the container's previous log if it contains the place
// reached. rotated reports whether no log contains it.
func (s *timestamps) readPrevious(ctx context.Context, which reading) (rotated bool, err error) {
	if !which.previous {
		previous, err := s.stream.open(ctx, reading{previous: true})
		if apierrors.IsBadRequest(err) {
			return true, nil // the container has no earlier run
		}
		if err != nil {
			return false, err
		}
		defer previous.Close()
		s.short = shortAnswers // an ended container writes no more
		err = s.read(previous)
		if !errors.Is(err, errRotated) && !errors.Is(err, errUnopened) {
			return false, err
		}
		if s.seen.Before(s.at.First) {
			return true, nil // the previous log is that of an earlier run
		}
	}
	// Both the log of this run and that of a later run may have been rotated. Wait until the API
	// server would know about the later run.
	s.stream.foreign++
	if s.stream.foreign < foreignAttempts {
		return false, errForeign
	}
	return true, nil
}

// Write passes on lines without their timestamps.
func (s *timestamps) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		if !s.inLine {
			var err error
			if rest, err = s.readTimestamp(rest); err != nil {
				return 0, err
			}
			continue
		}
		part := rest
		if end := bytes.IndexByte(rest, '\n'); end >= 0 {
			part, s.inLine = rest[:end+1], false
		}
		rest = rest[len(part):]
		if err := s.pass(part); err != nil {
			return 0, err
		}
	}
	return len(data), nil
}

// pass passes on a part of the current line, or the end of the part that is new.
func (s *timestamps) pass(part []byte) error {
	if s.missing {
		return nil
	}
	known := min(s.skip, int64(len(part)))
	s.skip -= known
	if part = part[known:]; len(part) == 0 {
		return nil
	}
	if !s.unstamped {
		s.at.Bytes += int64(len(part))
	}
	if !s.inLine {
		s.whole = s.at
	}
	_, err := s.stream.Write(part)
	return err
}

// readTimestamp reads the timestamp at the beginning of a line, or a part of it, and returns
// the rest of data.
func (s *timestamps) readTimestamp(data []byte) (rest []byte, err error) {
	end := bytes.IndexByte(data, ' ')
	if end < 0 && len(s.begin)+len(data) < maxTimestamp {
		s.begin = append(s.begin, data...)
		return nil, nil
	}
	s.begin, rest = append(s.begin, data[:end+1]...), data[end+1:]
	stamp, err := time.Parse(time.RFC3339Nano, string(bytes.TrimSuffix(s.begin, []byte(" "))))
	if s.unstamped = err != nil; s.unstamped {
		rest = append(s.begin, rest...)
	}
	s.begin, s.inLine, s.skip = nil, true, 0
	if s.unstamped {
		return rest, nil
	}
	return rest, s.beginLine(stamp)
}

// beginLine moves the place to a new line. While the place is missing, beginLine looks for its
// line, and returns errRotated at a later line: the lines before the place are not later.
func (s *timestamps) beginLine(stamp time.Time) error {
	if s.missing && stamp.After(s.seen) {
		s.seen = stamp
	}
	switch {
	case s.missing && stamp.After(s.at.Newest):
		return errRotated
	case s.missing && !stamp.Equal(s.at.Stamp):
	case s.missing && s.same < s.at.Same:
		s.same++
	case s.missing:
		s.missing, s.skip = false, s.at.Bytes
		s.short, s.stream.foreign = 0, 0
	default:
		s.at.Stamp, s.at.Same, s.at.Bytes = stamp, s.count(stamp), 0
		if stamp.After(s.at.Newest) {
			s.at.Newest = stamp
		}
		if s.at.First.IsZero() {
			s.at.First = stamp
		}
	}
	return nil
}

// loseMaybe reports output that may have been lost.
func (s *stream) loseMaybe(why string) {
	text := fmt.Sprintf("output of container %s of pod %s may be lost: %s", s.container, s.pod, why)
	s.logs.follows(Step{Lost: []LostOutput{{containerlog.Loss{}, text}}})
}
