package workload

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/kube/containerlog"
)

// answer is the server's answer to one request for the log.
type answer struct {
	text string
	// then is the end of the answer: "abort", "clean", "unavailable" or "deleted" before
	// it begins, or "ended" with the container.
	then string
}

// brokenLog answers each request for a log with the next one.
type brokenLog struct {
	mu       sync.Mutex
	answers  []answer
	since    []string
	previous []string
	ended    func()
	// pods holds the server's successive answers about the pod.
	pods []map[string]any
	// later: the log under the container's name is a later one by now.
	later bool
	// away: the server does not answer the next request for a part of the log.
	away bool
}

func (b *brokenLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	b.mu.Lock()
	if !strings.HasSuffix(r.URL.Path, "/log") {
		defer b.mu.Unlock()
		writeJSON(w, b.pods[0])
		if len(b.pods) > 1 {
			b.pods = b.pods[1:]
		}
		return
	}
	if query.Get("timestamps") == "true" {
		defer b.mu.Unlock()
		began := "2000-01-01T00:00:00.123456789Z"
		if b.later && query.Get("previous") == "" {
			began = "2999-01-01T00:00:00.123456789Z"
		}
		io.WriteString(w, began+" one")
		return
	}
	if b.away && query.Get("sinceTime") != "" {
		defer b.mu.Unlock()
		b.away = false
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	next := b.answers[0]
	if len(b.answers) > 1 {
		b.answers = b.answers[1:]
	}
	b.since = append(b.since, query.Get("sinceTime"))
	b.previous = append(b.previous, query.Get("previous"))
	b.mu.Unlock()
	switch next.then {
	case "unavailable":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "deleted":
		w.WriteHeader(http.StatusNotFound)
	case "ended":
		b.ended()
	}
	io.WriteString(w, next.text)
	w.(http.Flusher).Flush()
	if next.then == "abort" {
		panic(http.ErrAbortHandler)
	}
}

func TestBrokenLogIsContinued(t *testing.T) {
	const whole = "one\ntwo\nthree, without an end"
	for name, test := range map[string]struct {
		answers []answer
		want    string
		note    string
		away    bool
	}{
		"in the middle of a line": {
			answers: []answer{{"one\ntw", "abort"}, {whole, "ended"}},
			want:    whole,
		},
		"at the end of a line, in order": {
			answers: []answer{{"one\n", "clean"}, {whole, "ended"}},
			want:    whole,
		},
		"with nothing new in between": {
			answers: []answer{{"one\n", "clean"}, {"one\n", "abort"}, {"", "unavailable"}, {whole, "ended"}},
			want:    whole,
		},
		"just before the container ends": {
			answers: []answer{{"one\n", "ended"}, {whole, "clean"}},
			want:    whole,
		},
		"while it is read again": {
			answers: []answer{{"one\ntwo\n", "abort"}, {"one", "abort"}, {whole, "ended"}},
			want:    whole,
		},
		"and has been rotated": {
			answers: []answer{{"one\n", "abort"}, {"two\n", "clean"}, {"two\n", "ended"}},
			want:    "one\ntwo\n",
			note:    "rotated away while it was read",
		},
		"and has been rotated, and the server is away": {
			answers: []answer{{"one\n", "abort"}, {"two\n", "clean"}, {"two\n", "ended"}},
			want:    "one\ntwo\n",
			note:    "rotated away while it was read",
			away:    true,
		},
		"by the kubelet, which says why": {
			answers: []answer{{"one\nfailed to create fsnotify watcher: too many open files", "clean"}, {whole, "ended"}},
			want:    whole,
		},
		"and has been rotated to less": {
			answers: []answer{{"one\n", "abort"}, {"", "clean"}, {"two\n", "ended"}},
			want:    "one\ntwo\n",
			note:    "rotated away while it was read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &brokenLog{answers: test.answers, pods: []map[string]any{knownPod("u", runningStatus("c"))}, later: test.note != "", away: test.away}
			got, notes := follow(t, api)
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

func TestLogOfDeletedPod(t *testing.T) {
	for name, test := range map[string]struct {
		answers []answer
		want    string
		note    string
	}{
		"before it was opened": {
			answers: []answer{{"", "deleted"}},
			note:    "its pod was deleted before it was read",
		},
		"after it was followed": {
			answers: []answer{{"one\n", "clean"}, {"", "deleted"}},
			want:    "one\n",
		},
		"after the following broke off": {
			answers: []answer{{"one\n", "abort"}, {"", "deleted"}},
			want:    "one\n",
			note:    "its pod was deleted before it was read to the end",
		},
		"after it was followed, broke off and was followed again": {
			answers: []answer{{"one\n", "abort"}, {"one\ntwo\n", "clean"}, {"", "deleted"}},
			want:    "one\ntwo\n",
		},
		"after the kubelet could not follow it": {
			answers: []answer{{"one\nfailed to create fsnotify watcher: too many open files", "clean"}, {"", "deleted"}},
			want:    "one\n",
			note:    "its pod was deleted before it was read to the end",
		},
		"after it was followed, and its file was gone": {
			answers: []answer{{"one\n", "clean"}, {kubeletTexts[2], "clean"}, {"", "deleted"}},
			want:    "one\n",
		},
		"after its file could not be opened": {
			answers: []answer{{kubeletTexts[2], "clean"}, {"", "deleted"}},
			note:    "its pod was deleted before it was read",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, notes := follow(t, &brokenLog{answers: test.answers, pods: []map[string]any{knownPod("u", runningStatus("c"))}})
			if got != test.want || (test.note == "") != (notes == "") || !strings.Contains(notes, test.note) {
				t.Errorf("got %q, want %q; notes %q, want %q", got, test.want, notes, test.note)
			}
		})
	}
}

func TestLaterContainerHasAnotherLog(t *testing.T) {
	later := map[string]any{
		"name": "main", "containerID": "later", "state": map[string]any{"running": map[string]any{}},
		"lastState": map[string]any{"terminated": map[string]any{"containerID": "c"}},
	}
	known := knownPod("u", later)
	for name, pods := range map[string][]map[string]any{
		"known to the server":     {known},
		"not known to the server": {knownPod("u", runningStatus("c")), known},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// The later one has written the same so far.
			api := &brokenLog{answers: []answer{{"one\n", "abort"}, {"one\ntwo\n", "ended"}}, pods: pods, later: true}
			if len(pods) > 1 {
				api.answers = []answer{api.answers[0], {"one\n", "clean"}, api.answers[1]}
			}
			got, notes := follow(t, api)
			if want := "one\ntwo\n"; got != want || notes != "" {
				t.Errorf("got %q, notes %q, want %q", got, notes, want)
			}
			if last := api.previous[len(api.previous)-1]; last != "true" {
				t.Errorf("asked for the previous log: %q", api.previous)
			}
		})
	}
	for name, pod := range map[string]map[string]any{
		"replaced twice":             knownPod("u", runningStatus("latest")),
		"of another pod by its name": knownPod("v", runningStatus("c")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &brokenLog{answers: []answer{{"one\n", "abort"}, {"one\ntwo\n", "ended"}}, pods: []map[string]any{pod}}
			got, notes := follow(t, api)
			if got != "one\n" || len(api.previous) != 1 {
				t.Errorf("got %q after %d readings", got, len(api.previous))
			}
			if !strings.Contains(notes, "another container was started in its place") {
				t.Errorf("notes %q", notes)
			}
		})
	}
}

func TestLogOfLaterContainerComesLater(t *testing.T) {
	first := corev1.ContainerStatus{Name: "main", ContainerID: "c"}
	second := corev1.ContainerStatus{Name: "main", ContainerID: "later"}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	known := runningStatus("later")
	known["lastState"] = map[string]any{"terminated": map[string]any{"containerID": "c"}}
	var replaced sync.Once
	var refusals atomic.Int32
	var replace func()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch {
		case !strings.HasSuffix(r.URL.Path, "/log"):
			writeJSON(w, knownPod("u", known))
		case query.Get("timestamps") == "true":
			io.WriteString(w, "2000-01-01T00:00:00Z ")
		case query.Get("previous") == "true" && refusals.Add(1) > 3:
			io.WriteString(w, "first\n")
		case query.Get("previous") == "true":
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			// The first container's log is opened, but it is too late.
			early := false
			replaced.Do(func() { replace(); early = true })
			if early {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			io.WriteString(w, "second\n")
		}
	}))
	defer server.Close()
	var text, notes strings.Builder
	l := newLogs(testClient(t, server.URL), Streams{Out: &text, Err: io.Discard, Lose: func(loss string, _ containerlog.Loss) { notes.WriteString(loss) }}, true)
	l.pause = time.Millisecond
	begun := make(chan struct{})
	replace = func() {
		<-begun
		s := newStream(l, pod, second, "Stdout")
		predecessor := l.followed["c"][0]
		predecessor.replace()
		s.start(t.Context(), predecessor)
		s.endContainer()
	}
	s := newStream(l, pod, first, "Stdout")
	l.followed["c"] = []*stream{s}
	s.start(t.Context(), nil)
	close(begun)
	_ = l.wait(t.Context(), nil, nil)
	if want := "first\nsecond\n"; text.String() != want || notes.String() != "" {
		t.Errorf("got %q, notes %q, want %q", text.String(), notes.String(), want)
	}
}

func TestBytesPassUnchanged(t *testing.T) {
	// Longer than the runtime's and the copy's buffers, no text, no end of line.
	whole := strings.Repeat("\x00\xff\r long ", 10000) + "\n\n" + strings.Repeat("x", 100000)
	for _, cut := range []int{0, 1, 16384, len(whole) / 2, len(whole) - 1, len(whole)} {
		t.Run(strconv.Itoa(cut), func(t *testing.T) {
			t.Parallel()
			got, notes := follow(t, &brokenLog{
				answers: []answer{{whole[:cut], "abort"}, {whole, "ended"}},
				pods:    []map[string]any{knownPod("u", runningStatus("c"))},
			})
			if got != whole || notes != "" {
				t.Errorf("%d bytes that differ from the %d, notes %q", len(got), len(whole), notes)
			}
		})
	}
}

func knownPod(uid string, status map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "p", "namespace": "default", "uid": uid},
		"status":   map[string]any{"phase": "Running", "containerStatuses": []any{status}},
	}
}

func runningStatus(id string) map[string]any {
	return map[string]any{"name": "main", "containerID": id, "state": map[string]any{"running": map[string]any{}}}
}

// follow copies the log of one container.
func follow(t *testing.T, api *brokenLog) (out, notes string) {
	t.Helper()
	return followAt(t, api, &api.ended, Streams{})
}

// followAt copies standard output from a server. It sets ended to the function that ends the
// container.
func followAt(t *testing.T, api http.Handler, ended *func(), streams Streams) (out, notes string) {
	t.Helper()
	return followAs(t, api, ended, streams, true)
}

// followAs works like followAt. plain is the field of logs.
func followAs(t *testing.T, api http.Handler, ended *func(), streams Streams, plain bool) (out, notes string) {
	t.Helper()
	server := httptest.NewServer(api)
	defer server.Close()
	client := testClient(t, server.URL)
	var text, said strings.Builder
	streams.Out, streams.Err = &text, io.Discard
	streams.Lose = func(loss string, _ containerlog.Loss) { said.WriteString(loss) }
	l := newLogs(client, streams, plain)
	l.pause = time.Millisecond
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	ready := make(chan struct{})
	*ended = func() {
		<-ready
		l.containerEnded("c")
	}
	s := newStream(l, pod, corev1.ContainerStatus{Name: "main", ContainerID: "c"}, l.firstStream())
	l.followed["c"] = []*stream{s}
	s.start(t.Context(), nil)
	close(ready)
	_ = l.wait(t.Context(), nil, nil)
	return text.String(), said.String()
}
