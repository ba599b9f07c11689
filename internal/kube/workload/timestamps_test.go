package workload

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// stampedLog serves a log with timestamps in answers that break off. A line may be divided
// into parts.
type stampedLog struct {
	lines    []string
	times    []time.Duration // from stampedBegin to each line; nil for the times of stampOf
	answers  []stampedAnswer
	previous []string // lines of the previous log, a second apart; nil for none
	asked    []string // values of sinceTime of the present log
	ended    func()
	pod      map[string]any
}

// stampedAnswer is one answer. first is the number of lines that were rotated away before, and
// until the length in bytes. then is its end, as in answer, or "open" for none, or "present" for
// that of a log that is still written.
type stampedAnswer struct {
	first, until int
	then         string
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
	since, _ := time.Parse(time.RFC3339, query.Get("sinceTime"))
	var text strings.Builder
	line := func(stamp time.Time, line string, isNew bool) {
		if isNew {
			text.WriteString(stamp.Format("2006-01-02T15:04:05.000000000Z07:00 "))
		}
		text.WriteString(line)
	}
	if query.Get("previous") != "" {
		if l.previous == nil {
			http.Error(w, `previous terminated container "main" in pod "p" not found`, http.StatusBadRequest)
		}
		for i, text := range l.previous {
			line(stampedBegin.Add(time.Duration(i-len(l.previous))*time.Second), text, true)
		}
		io.WriteString(w, text.String())
		return
	}
	l.asked = append(l.asked, query.Get("sinceTime"))
	next := l.answers[0]
	if len(l.answers) > 1 {
		l.answers = l.answers[1:]
	} else if next.then == "" {
		next.then, next.until = "ended", math.MaxInt
	}
	for i, part := range l.lines {
		if i >= next.first && !l.stampOf(i).Before(since) {
			line(l.stampOf(i), part, i == 0 || strings.HasSuffix(l.lines[i-1], "\n"))
		}
	}
	switch {
	case next.then == "ended":
		l.ended()
	case next.then == "present":
		next.until, next.then = math.MaxInt, "clean"
		if query.Get("follow") != "" {
			next.then = "open"
		}
	}
	io.WriteString(w, text.String()[:min(next.until, text.Len())])
	w.(http.Flusher).Flush()
	switch next.then {
	case "open":
		<-r.Context().Done()
	case "":
		panic(http.ErrAbortHandler)
	}
}

const (
	stampLength = len("2026-11-28T12:00:00.000000000Z ")
	maybeLost   = "output of container main of pod p may be lost: its log was rotated while it was not read"
)

func TestStampedLogIsContinued(t *testing.T) {
	const stamp = stampLength
	lines := []string{"one\n", "two\n", "three\n", "four\n", "\n", "six and\n", "seven\n", "eight, without an end"}
	whole := strings.Join(lines, "")
	const since = "2026-11-28T11:59:50Z"
	for name, test := range map[string]struct {
		answers []stampedAnswer
		want    string
		since   string // of the request after the first break
		note    string
	}{
		"in order":                       {[]stampedAnswer{{}}, whole, "", ""},
		"in the middle of a line":        {[]stampedAnswer{{until: 2*stamp + 6}, {}}, whole, since, ""},
		"in the middle of a timestamp":   {[]stampedAnswer{{until: stamp + 14}, {}}, whole, since, ""},
		"after a timestamp":              {[]stampedAnswer{{until: 2*stamp + 4}, {}}, whole, since, ""},
		"between lines of one timestamp": {[]stampedAnswer{{until: stamp + 4}, {}}, whole, since, ""},
		"in a later second":              {[]stampedAnswer{{until: 3*stamp + 14}, {until: 3}, {}}, whole, "2026-11-28T11:59:51Z", ""},
		"older lines rotated":            {[]stampedAnswer{{until: 3*stamp + 14}, {first: 2}}, whole, "2026-11-28T11:59:51Z", ""},
		"an answer that ends too early":  {[]stampedAnswer{{until: stamp + 4}, {then: "clean"}, {until: 10, then: "clean"}, {}}, whole, since, ""},
		"rotated":                        {[]stampedAnswer{{until: 4*stamp + 19}, {first: 4}}, whole, "2026-11-28T11:59:51Z", maybeLost},
		"rotated, without a later line":  {[]stampedAnswer{{until: 4*stamp + 19}, {first: 8, then: "clean"}, {first: 8}}, "one\ntwo\nthree\nfour\n", "2026-11-28T11:59:51Z", maybeLost},
		"rotated while lines were lost":  {[]stampedAnswer{{until: 4*stamp + 19}, {first: 6}}, strings.Replace(whole, "\nsix and\n", "", 1), "2026-11-28T11:59:51Z", maybeLost},
		// The answer does not end, but its first line shows that the log was rotated.
		"rotated, and it is still written": {[]stampedAnswer{{until: 4*stamp + 19}, {first: 4, until: stamp + 1, then: "open"}, {first: 4}}, whole, "2026-11-28T11:59:51Z", maybeLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &stampedLog{lines: lines, answers: test.answers, pod: knownPod("u", runningStatus("c"))}
			got, notes := followAt(t, api, &api.ended, Streams{Existing: true})
			if got != test.want || notes != test.note {
				t.Errorf("got %q, want %q; notes %q, want %q", got, test.want, notes, test.note)
			}
			if since := api.asked[min(1, len(test.answers)-1)]; since != test.since {
				t.Errorf("the first break was followed by a request for lines since %q, want %q", since, test.since)
			}
			if whole := slices.Contains(api.asked[1:], ""); whole != (test.note != "") && len(test.answers) > 1 {
				t.Errorf("the log was requested from its beginning again: %v", whole)
			}
		})
	}
}

// The container runtime may write a line after another one with a later timestamp, and divides
// long lines into parts with separate timestamps. Each line is passed on once.
func TestStampedLogOutOfOrder(t *testing.T) {
	const stamp = stampLength
	const ms = time.Millisecond
	for name, test := range map[string]struct {
		lines []string
		times []time.Duration
		until int // of the first answer
	}{
		"two lines, passed on":             {[]string{"0\n", "b\n", "a\n", "c\n"}, []time.Duration{-500 * ms, 2 * ms, 0, 3 * ms}, 4*stamp + 7},
		"two lines, one unread":            {[]string{"0\n", "b\n", "a\n", "c\n"}, []time.Duration{-500 * ms, 2 * ms, 0, 3 * ms}, 2*stamp + 4},
		"two lines, one half":              {[]string{"0\n", "b\n", "aaa\n", "c\n"}, []time.Duration{-500 * ms, 2 * ms, 0, 3 * ms}, 3*stamp + 6},
		"one line in each second":          {[]string{"a\n", "b\n", "c\n", "d\n"}, []time.Duration{2 * ms, 1002 * ms, 2002 * ms, 3002 * ms}, 3*stamp + 6},
		"a part in the next second":        {[]string{"a", "bb\n", "c\n", "d\n"}, []time.Duration{0, 2 * ms, 500 * ms, 501 * ms}, 2*stamp + 5},
		"a long part in the next second":   {[]string{"a", strings.Repeat("b", 100_000) + "\n", "c\n", "d\n"}, []time.Duration{0, 2 * ms, 500 * ms, 501 * ms}, 2*stamp + 100_003},
		"within a long part":               {[]string{"a", strings.Repeat("b", 100_000) + "\n", "c\n", "d\n"}, []time.Duration{0, 2 * ms, 500 * ms, 501 * ms}, stamp + 50_003},
		"late by seconds, passed on":       {[]string{"a\n", "b\n", "c\n", "d\n"}, []time.Duration{5000 * ms, 0, 5001 * ms, 5002 * ms}, 3*stamp + 6},
		"late by seconds, in a new second": {[]string{"a\n", "b\n", "c\n", "d\n", "e\n"}, []time.Duration{5000 * ms, 5001 * ms, 0, 5002 * ms, 5003 * ms}, 4*stamp + 8},
		"the clock was set back":           {[]string{"a\n", "b\n", "cc\n", "d\n"}, []time.Duration{0, 5500 * ms, 1000 * ms, 5501 * ms}, 3*stamp + 5},
		"the clock was set back an hour":   {[]string{"a\n", "b\n", "cc\n", "d\n"}, []time.Duration{time.Hour, time.Hour + ms, 0, ms}, 3*stamp + 5},
		"equal, and not adjacent":          {[]string{"a\n", "b\n", "c\n", "d\n"}, []time.Duration{0, 2 * ms, 0, 3 * ms}, 3*stamp + 6},
		"equal, and not adjacent, a half":  {[]string{"a\n", "b\n", "cc\n", "d\n"}, []time.Duration{0, 2 * ms, 0, 3 * ms}, 3*stamp + 5},
		"three equal":                      {[]string{"a\n", "b\n", "c\n", "d\n", "e\n", "f\n"}, []time.Duration{0, 2 * ms, 0, 2 * ms, 0, 3 * ms}, 5*stamp + 10},
		"the clock is set back meanwhile":  {[]string{"a\n", "b\n", "cc\n", "d\n"}, []time.Duration{0, 9500 * ms, ms, 2 * ms}, 2*stamp + 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &stampedLog{
				lines: test.lines, times: test.times, pod: knownPod("u", runningStatus("c")),
				answers: []stampedAnswer{{until: test.until}, {}},
			}
			got, notes := followAt(t, api, &api.ended, Streams{Existing: true})
			if want := strings.Join(test.lines, ""); got != want || notes != "" {
				t.Errorf("got %.99q, want %.99q; notes %q", got, want, notes)
			}
			if len(api.asked) > 3 {
				t.Errorf("the log was requested %d times", len(api.asked))
			}
		})
	}
}

// The clock was set back by an hour, and the log was rotated while it was not read. The new lines
// arrive before the clock has caught up.
func TestStampedLogIsRotatedAfterTheClockWasSetBack(t *testing.T) {
	const ms = time.Millisecond
	present := stampedAnswer{first: 4, then: "present"}
	api := &stampedLog{
		lines: []string{"a\n", "b\n", "c\n", "d\n", "e\n", "f\n"}, times: []time.Duration{time.Hour, time.Hour + ms, 0, ms, 2 * ms, 3 * ms},
		answers: []stampedAnswer{{until: 4*stampLength + 8}, present, present, present, {first: 4}},
		pod:     knownPod("u", runningStatus("c")),
	}
	got, notes := followAt(t, api, &api.ended, Streams{Existing: true})
	if want := strings.Join(api.lines, ""); got != want || notes != maybeLost {
		t.Errorf("got %q, want %q; notes %q", got, want, notes)
	}
}

// The kubelet may serve the log of a later run of the container before the API server knows about
// that run. Then the previous log contains the last line.
func TestStampedLogOfLaterRun(t *testing.T) {
	const stamp = stampLength
	for name, test := range map[string]struct {
		previous []string
		want     string
		note     string
	}{
		"a later run":             {[]string{"one\n", "two\n", "three\n"}, "one\ntwo\nthree\n", ""},
		"rotated, an earlier run": {[]string{"zero\n"}, "one\nlater\n", maybeLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := -time.Duration(3) * time.Second
			api := &stampedLog{
				lines: []string{"one\n", "later\n"}, times: []time.Duration{begin, 5 * time.Second},
				answers:  []stampedAnswer{{until: stamp + 4}, {first: 1, until: math.MaxInt, then: "ended"}, {first: 1}},
				previous: test.previous, pod: knownPod("u", runningStatus("c")),
			}
			if test.note != "" {
				api.times[0] = 0 // after the previous log
			}
			got, notes := followAt(t, api, &api.ended, Streams{Existing: true})
			if got != test.want || notes != test.note {
				t.Errorf("got %q, want %q; notes %q, want %q", got, test.want, notes, test.note)
			}
			if len(api.asked) > 4 {
				t.Errorf("the log was requested %d times", len(api.asked))
			}
		})
	}
}

// Another process continues after the last line that was passed on, whether or not the log was
// rotated meanwhile.
func TestStampedLogAfterRestart(t *testing.T) {
	const stamp = stampLength
	lines := []string{"one\n", "two\n", "three\n", "four\n"}
	for name, test := range map[string]struct {
		until   int   // of the answer to the first process
		copied  int64 // by the first process
		names   bool  // lines begin with the container's name
		answers []stampedAnswer
		want    string // of the second process
		note    string
	}{
		"at the end of a line":       {2*stamp + 8, 8, false, []stampedAnswer{{}}, "three\nfour\n", ""},
		"in a line":                  {2*stamp + 6, 6, false, []stampedAnswer{{}}, "o\nthree\nfour\n", ""},
		"in a line, after a break":   {2*stamp + 6, 6, false, []stampedAnswer{{until: stamp + 2}, {}}, "o\nthree\nfour\n", ""},
		"in a line, with names":      {2*stamp + 6, 6, true, []stampedAnswer{{}}, "[p main] two\n[p main] three\n[p main] four\n", ""},
		"at the beginning":           {10, 0, false, []stampedAnswer{{}}, "one\ntwo\nthree\nfour\n", ""},
		"rotated":                    {2*stamp + 8, 8, false, []stampedAnswer{{first: 2}}, "three\nfour\n", maybeLost},
		"rotated, with lines unread": {2*stamp + 8, 8, false, []stampedAnswer{{first: 3}}, "four\n", maybeLost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			progress := &Progress{}
			api := &stampedLog{lines: lines, pod: knownPod("u", runningStatus("c")), answers: []stampedAnswer{{until: test.until, then: "open"}}}
			server := httptest.NewServer(api)
			ctx, cancel := context.WithCancel(t.Context())
			first := newLogs(testClient(t, server.URL), Streams{Existing: true, Out: io.Discard, Progress: progress}, !test.names)
			s := newStream(first, podOnNode(corev1.PodRunning), corev1.ContainerStatus{Name: "main", ContainerID: "c"}, mixedStreams)
			s.start(ctx, nil)
			copied := func() int64 { s.mu.Lock(); defer s.mu.Unlock(); return s.copied }
			for copied() < test.copied && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			killed := ReadProgress(progress.String())
			cancel()
			<-s.done
			server.Close()
			if !test.names { // otherwise the end of a process passes on the beginning of a line
				killed = progress
			}
			second := &stampedLog{lines: lines, pod: api.pod, answers: test.answers}
			got, notes := followAs(t, second, &second.ended, Streams{Existing: true, Progress: ReadProgress(killed.String())}, !test.names)
			if got != test.want || notes != test.note {
				t.Errorf("got %q, want %q; notes %q, want %q", got, test.want, notes, test.note)
			}
		})
	}
}
