package workload

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// stampedLog serves a log with times in answers that break off. first is the number of lines
// that were rotated away before an answer, and until the number of bytes of an answer.
type stampedLog struct {
	lines   []string
	answers []struct{ first, until int }
	asked   []string
	ended   func()
	pod     map[string]any
}

var stampedBegin = time.Date(2026, 11, 28, 12, 0, 0, 999_000_000, time.UTC)

// stampOf returns the time of a line. Two lines have the same one.
func stampOf(line int) time.Time {
	return stampedBegin.Add(time.Duration(line/2) * 400 * time.Millisecond)
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
		if i >= next.first && !stampOf(i).Before(since) {
			fmt.Fprintf(&text, "%s %s", stampOf(i).Format("2006-01-02T15:04:05.000000000Z07:00"), line)
		}
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
		"in order":                        {answers{{0, 0}}, whole, "", ""},
		"in the middle of a line":         {answers{{0, 2*stamp + 6}, {0, 0}}, whole, "2026-11-28T12:00:00Z", ""},
		"in the middle of a time":         {answers{{0, stamp + 14}, {0, 0}}, whole, "2026-11-28T12:00:00Z", ""},
		"between lines of one time":       {answers{{0, stamp + 4}, {0, 0}}, whole, "2026-11-28T12:00:00Z", ""},
		"in a later second":               {answers{{0, 3*stamp + 14}, {0, 3}, {0, 0}}, whole, "2026-11-28T12:00:01Z", ""},
		"what was copied before, rotated": {answers{{0, 3*stamp + 14}, {2, 0}}, whole, "2026-11-28T12:00:01Z", ""},
		"rotated in the last second":      {answers{{0, 3*stamp + 14}, {3, 0}}, whole, "2026-11-28T12:00:01Z", "rotated away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &stampedLog{lines: lines, answers: test.answers, pod: knownPod("u", runningStatus("c"))}
			got, notes := followAt(t, api, &api.ended, Streams{Foreign: true})
			if test.note != "" {
				// Line 4 has the time of line 3, which was passed on.
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
