package workload

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth.dev/berth/internal/kube/containerlog"
)

// stampedLog serves a log with timestamps in answers that break off. first is the number of
// lines that were rotated away before an answer, and until the length of the answer in bytes. A
// line may be divided into parts.
type stampedLog struct {
	lines   []string
	times   []time.Duration // from stampedBegin to each line; nil for the times of stampOf
	answers []struct{ first, until int }
	asked   []string
	ended   func()
	pod     map[string]any
}

var stampedBegin = time.Date(2026, 11, 28, 12, 0, 0, 999_000_000, time.UTC)

// stampOf returns the timestamp of a line. Each timestamp is that of two lines.
func stampOf(line int) time.Time {
	return stampedBegin.Add(time.Duration(line/2) * 400 * time.Millisecond)
}

func (l *stampedLog) stampOf(line int) time.Time {
	if l.times == nil {
		return stampOf(line)
	}
	return stampedBegin.Add(l.times[line])
}

func (l *stampedLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if !strings.HasSuffix(r.URL.Path, "/log") {
		writeJSON(w, l.pod)
		return
	}
	if query.Get("limitBytes") != "" {
		io.WriteString(w, stampedBegin.Format(time.RFC3339Nano)+" ")
		return
	}
	since, _ := time.Parse(time.RFC3339, query.Get("sinceTime"))
	l.asked = append(l.asked, query.Get("sinceTime"))
	next := l.answers[0]
	last := len(l.answers) == 1
	if !last {
		l.answers = l.answers[1:]
	}
	var text strings.Builder
	for i, line := range l.lines {
		if i < next.first || l.stampOf(i).Before(since) {
			continue
		}
		if i == 0 || strings.HasSuffix(l.lines[i-1], "\n") {
			text.WriteString(l.stampOf(i).Format("2006-01-02T15:04:05.000000000Z07:00 "))
		}
		text.WriteString(line)
	}
	if last {
		l.ended()
		io.WriteString(w, text.String())
		return
	}
	io.WriteString(w, text.String()[:next.until])
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

func TestStampedLogIsContinued(t *testing.T) {
	lines := []string{"one\n", "two\n", "three\n", "four\n", "\n", "six and\n", "seven\n", "eight, without an end"}
	const stamp = len("2026-11-28T12:00:00.000000000Z ")
	whole := strings.Join(lines, "")
	type answers = []struct{ first, until int }
	for name, test := range map[string]struct {
		answers answers
		want    string
		since   string // of the request after the last break
		note    string
	}{
		"in order":                       {answers{{0, 0}}, whole, "", ""},
		"in the middle of a line":        {answers{{0, 2*stamp + 6}, {0, 0}}, whole, "2026-11-28T12:00:00Z", ""},
		"in the middle of a timestamp":   {answers{{0, stamp + 14}, {0, 0}}, whole, "2026-11-28T12:00:00Z", ""},
		"between lines of one timestamp": {answers{{0, stamp + 4}, {0, 0}}, whole, "2026-11-28T12:00:00Z", ""},
		"in a later second":              {answers{{0, 3*stamp + 14}, {0, 3}, {0, 0}}, whole, "2026-11-28T12:00:01Z", ""},
		"older lines rotated":            {answers{{0, 3*stamp + 14}, {2, 0}}, whole, "2026-11-28T12:00:01Z", ""},
		"rotated in the last second":     {answers{{0, 3*stamp + 14}, {3, 0}}, whole, "2026-11-28T12:00:01Z", "rotated away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &stampedLog{lines: lines, answers: test.answers, pod: knownPod("u", runningStatus("c"))}
			got, notes := followAt(t, api, &api.ended, Streams{Existing: true})
			if test.note != "" {
				// Line 4 has the timestamp of line 3, which was passed on.
				test.want = strings.Replace(whole, "four\n", "", 1)
			}
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if (test.note == "") != (notes == "") || !strings.Contains(notes, test.note) {
				t.Errorf("notes %q, want %q", notes, test.note)
			}
			if last := api.asked[len(test.answers)-1]; last != test.since {
				t.Errorf("the last break was followed by a request for lines since %q, want %q", last, test.since)
			}
		})
	}
}

// The container runtime may write a line after another one with a later timestamp, and divides
// long lines into parts with separate timestamps. Each line is passed on once.
func TestStampedLogOutOfOrder(t *testing.T) {
	const stamp = len("2026-11-28T12:00:00.000000000Z ")
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		lines []string
		times []time.Duration
		until int // of the first answer
		lost  string
		since string
		note  string
	}{
		"two lines, passed on":                {[]string{"0\n", "b\n", "a\n", "c\n"}, []time.Duration{-500 * ms, 2 * ms, 0, 3 * ms}, 4*stamp + 7, "", "2026-11-28T12:00:00Z", ""},
		"two lines, one unread":               {[]string{"0\n", "b\n", "a\n", "c\n"}, []time.Duration{-500 * ms, 2 * ms, 0, 3 * ms}, 2*stamp + 4, "", "2026-11-28T12:00:00Z", ""},
		"two lines, one half":                 {[]string{"0\n", "b\n", "aaa\n", "c\n"}, []time.Duration{-500 * ms, 2 * ms, 0, 3 * ms}, 3*stamp + 6, "", "2026-11-28T12:00:00Z", ""},
		"two lines before the second is over": {[]string{"b\n", "a\n", "c\n", "d\n"}, []time.Duration{2 * ms, 0, 500 * ms, 501 * ms}, 3*stamp + 5, "", "2026-11-28T12:00:01Z", ""},
		"one line in each second":             {[]string{"a\n", "b\n", "c\n", "d\n"}, []time.Duration{2 * ms, 1002 * ms, 2002 * ms, 3002 * ms}, 3*stamp + 6, "", "2026-11-28T12:00:02Z", ""},
		"a part in the next second":           {[]string{"a", "bb\n", "c\n", "d\n"}, []time.Duration{0, 2 * ms, 500 * ms, 501 * ms}, 2*stamp + 5, "", "2026-11-28T12:00:01Z", ""},
		"a long part in the next second":      {[]string{"a", strings.Repeat("b", 100_000) + "\n", "c\n", "d\n"}, []time.Duration{0, 2 * ms, 500 * ms, 501 * ms}, 2*stamp + 100_003, "", "2026-11-28T12:00:01Z", ""},
		"late by seconds, passed on":          {[]string{"a\n", "b\n", "c\n", "d\n"}, []time.Duration{5000 * ms, 0, 5001 * ms, 5002 * ms}, 3*stamp + 6, "", "2026-11-28T12:00:05Z", ""},
		"late by seconds, in a new second":    {[]string{"a\n", "b\n", "c\n", "d\n", "e\n"}, []time.Duration{5000 * ms, 5001 * ms, 0, 5002 * ms, 5003 * ms}, 4*stamp + 8, "", "2026-11-28T12:00:05Z", ""},
		"the clock was set back":              {[]string{"a\n", "b\n", "cc\n", "d\n"}, []time.Duration{0, 5500 * ms, 1000 * ms, 5501 * ms}, 3*stamp + 5, "c\n", "2026-11-28T12:00:06Z", "rotated away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &stampedLog{
				lines: test.lines, times: test.times, pod: knownPod("u", runningStatus("c")),
				answers: []struct{ first, until int }{{0, test.until}, {0, 0}},
			}
			got, notes := followAt(t, api, &api.ended, Streams{Existing: true})
			want := strings.Join(test.lines, "")
			if test.lost != "" {
				want = strings.Replace(want, test.lost, "", 1)
			}
			if got != want {
				t.Errorf("got %.99q, want %.99q", got, want)
			}
			if (test.note == "") != (notes == "") || !strings.Contains(notes, test.note) {
				t.Errorf("notes %q, want %q", notes, test.note)
			}
			if api.asked[1] != test.since {
				t.Errorf("the break was followed by a request for lines since %q, want %q", api.asked[1], test.since)
			}
		})
	}
}

// After a restart of the follower, the log breaks off before it has more output than the earlier
// process passed on. Then the stream does not take it for another container's log.
func TestStampedLogAfterRestart(t *testing.T) {
	const stamp = len("2026-11-28T12:00:00.000000000Z ")
	api := &stampedLog{
		lines: []string{"one\n", "two\n"}, pod: knownPod("u", runningStatus("c")),
		answers: []struct{ first, until int }{{0, stamp + 4}, {0, 0}},
	}
	mark := Mark{Position: containerlog.Position{Offset: 4}}
	progress := NewProgress(Followed{Marks: map[string]Mark{"c/" + mixedStreams: mark}}, nil)
	got, notes := followAt(t, api, &api.ended, Streams{Existing: true, Progress: progress})
	if got != "two\n" || notes != "" {
		t.Errorf("got %q, notes %q", got, notes)
	}
	if len(api.asked) >= foreignAttempts {
		t.Errorf("the log was requested %d times", len(api.asked))
	}
}
