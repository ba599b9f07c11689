package workload

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reading is what the server does with one request for the log.
type reading struct {
	text string
	// then is how the answer ends: "abort", "clean", "unavailable" before it
	// begins, or "ended" with the container.
	then string
}

// brokenLog answers each request for a log with the next reading.
type brokenLog struct {
	mu       sync.Mutex
	readings []reading
	since    []string
	ended    func()
}

func (b *brokenLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	next := b.readings[0]
	if len(b.readings) > 1 {
		b.readings = b.readings[1:]
	}
	b.since = append(b.since, r.URL.Query().Get("sinceTime"))
	b.mu.Unlock()
	switch next.then {
	case "unavailable":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "ended":
		b.ended()
	}
	io.WriteString(w, next.text)
	w.(http.Flusher).Flush()
	if next.then == "abort" {
		panic(http.ErrAbortHandler)
	}
}

func TestABrokenLogIsContinued(t *testing.T) {
	const whole = "one\ntwo\nthree, without an end"
	for name, test := range map[string]struct {
		readings []reading
		want     string
		note     string
	}{
		"in the middle of a line": {
			readings: []reading{{"one\ntw", "abort"}, {whole, "ended"}},
			want:     whole,
		},
		"at the end of a line, in order": {
			readings: []reading{{"one\n", "clean"}, {whole, "ended"}},
			want:     whole,
		},
		"with nothing new in between": {
			readings: []reading{{"one\n", "clean"}, {"one\n", "abort"}, {"", "unavailable"}, {whole, "ended"}},
			want:     whole,
		},
		"while it is read again": {
			readings: []reading{{"one\ntwo\n", "abort"}, {"one", "abort"}, {whole, "ended"}},
			want:     whole,
		},
		"and has been rotated": {
			readings: []reading{{"one\n", "abort"}, {"two\n", "clean"}, {"two\n", "ended"}},
			want:     "one\ntwo\n",
			note:     "may be missing or repeated",
		},
		"and has been rotated to less": {
			readings: []reading{{"one\n", "abort"}, {"", "clean"}, {"two\n", "ended"}},
			want:     "one\ntwo\n",
			note:     "may be missing or repeated",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, notes, api := follow(t, test.readings)
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if (test.note == "") != (notes == "") || !strings.Contains(notes, test.note) {
				t.Errorf("notes %q, want %q", notes, test.note)
			}
			if last := api.since[len(api.since)-1]; (last != "") != (test.note != "") {
				t.Errorf("the last reading was since %q", last)
			}
		})
	}
}

// follow copies the log of one container from a server with these readings.
func follow(t *testing.T, readings []reading) (out, notes string, api *brokenLog) {
	t.Helper()
	api = &brokenLog{readings: readings}
	server := httptest.NewServer(api)
	defer server.Close()
	client := testClient(t, server.URL)
	var text, said strings.Builder
	l := newLogs(client, Streams{Out: &text, Err: io.Discard, Note: func(note string) { said.WriteString(note) }}, true)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}}
	ready := make(chan struct{})
	api.ended = func() {
		<-ready
		l.containerEnded("c")
	}
	l.followed["c"] = []*stream{l.newStream(t.Context(), pod, "main", "Stdout", &text)}
	close(ready)
	l.group.Wait()
	return text.String(), said.String(), api
}
