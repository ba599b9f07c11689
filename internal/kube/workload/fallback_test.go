package workload

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/kube/containerlog"
)

func TestLogsFallBackToAPIServer(t *testing.T) {
	n := newNode(t, "default_p_u")
	n.instead.Store(http.StatusMethodNotAllowed)
	api := &brokenLog{answers: []answer{{"one\n", "clean"}}, pods: []map[string]any{knownPod("u", runningStatus("c"))}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("stream") == "Stdout" {
			api.ServeHTTP(w, r)
		} else if strings.Contains(r.URL.Path, "/proxy/") {
			n.ServeHTTP(w, r)
		}
	}))
	defer server.Close()
	var out syncBuffer
	l := newLogs(testClient(t, server.URL), Streams{Out: &out, Err: &out, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}, true)
	l.pause = time.Millisecond
	l.follow(t.Context(), podOnNode(corev1.PodSucceeded))
	if err := l.wait(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if out.String() != "one\n" {
		t.Errorf("output is %q", out.String())
	}
}

// What the runtime could not write is also counted where the API server gives the log,
// once in two processes.
func TestFallbackCountsWhatIsNotWritten(t *testing.T) {
	var unwritten atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/nodes/n/proxy/logs/unwritten/default_p_u/main"):
			fmt.Fprint(w, unwritten.Load())
		case strings.Contains(r.URL.Path, "/proxy/"):
			http.Error(w, "no", http.StatusMethodNotAllowed)
		case r.URL.Query().Get("stream") == "Stdout":
			_, _ = io.WriteString(w, "one\n")
		}
	}))
	defer server.Close()
	progress := &Progress{}
	for i, bytes := range []int64{700, 700, 1000} {
		unwritten.Store(bytes)
		progress = ReadProgress(progress.String())
		l := newLogs(testClient(t, server.URL), Streams{Out: io.Discard, Err: io.Discard, Progress: progress}, true)
		l.pause = time.Millisecond
		pod := podOnNode(corev1.PodSucceeded)
		pod.Status.ContainerStatuses[0].ContainerID = fmt.Sprint("run", i)
		l.follow(t.Context(), pod)
		if err := l.wait(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		if want := describe(containerlog.Loss{Bytes: bytes}); l.losses() != want {
			t.Errorf("process %d: lost %s, want %s", i, l.losses(), want)
		}
	}
}

// The loss of earlier runs of a container is reported while the reader of another
// container pauses. The follower does not wait for that.
func TestLossOfEarlierRunsDoesNotAwaitReader(t *testing.T) {
	reading, readOn := make(chan struct{}), make(chan struct{})
	l := newLogs(nil, Streams{Out: writerFunc(func() { close(reading); <-readOn }), Lose: func(string, containerlog.Loss) {}}, false)
	go func() { _ = l.deliver([]piece{{containerlog.KindStdout, []byte("x")}}, Step{}) }()
	<-reading
	status := podOnNode(corev1.PodRunning).Status.ContainerStatuses[0]
	status.RestartCount = 2
	l.beginPrevious(t.Context(), podOnNode(corev1.PodRunning), status, Mark{})
	if l.losses() != "" {
		t.Error("the loss overtakes output")
	}
	close(readOn)
	if err := l.wait(t.Context(), nil, nil); err != nil || l.losses() != describe(containerlog.Loss{}) {
		t.Errorf("%v, lost %q", err, l.losses())
	}
}

// Where a node does not have the role, the API server also has the log of the run
// before the present one. It has none of earlier runs.
func TestFallbackReadsEarlierRuns(t *testing.T) {
	for name, test := range map[string]struct {
		restarts int32
		waiting  bool
		mark     Mark
		want     string
		losses   int
	}{
		"one run before":        {restarts: 1, want: "one\ntwo\n"},
		"several runs before":   {restarts: 3, want: "one\ntwo\n", losses: 1},
		"part of the run":       {restarts: 1, mark: Mark{SentOut: 2}, want: "e\ntwo\n"},
		"waits for its restart": {restarts: 1, waiting: true, mark: Mark{Position: containerlog.Position{Generation: 1}}, want: "two\n"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOnNode(corev1.PodSucceeded)
			status := &pod.Status.ContainerStatuses[0]
			status.RestartCount = test.restarts
			last := &corev1.ContainerStateTerminated{ContainerID: "before"}
			if test.waiting {
				status.State, last.ContainerID = corev1.ContainerState{}, status.ContainerID
			}
			status.LastTerminationState.Terminated = last
			known := runningStatus(status.ContainerID)
			known["lastState"] = map[string]any{"terminated": map[string]any{"containerID": last.ContainerID}}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				query := r.URL.Query()
				switch {
				case strings.Contains(r.URL.Path, "/proxy/"):
					http.Error(w, "no", http.StatusMethodNotAllowed)
				case !strings.HasSuffix(r.URL.Path, "/log"):
					writeJSON(w, knownPod("u", known))
				case query.Get("timestamps") == "true":
					_, _ = io.WriteString(w, "2000-01-01T00:00:00.123456789Z one")
				case query.Get("stream") == "Stdout":
					_, _ = io.WriteString(w, map[bool]string{true: "one\n", false: "two\n"}[query.Has("previous")])
				}
			}))
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var out syncBuffer
			losses := 0
			progress := NewProgress(Followed{Marks: map[string]Mark{"u/main": test.mark}}, nil)
			l := newLogs(testClient(t, server.URL), Streams{Out: &out, Err: &out, Progress: progress, Lose: func(string, containerlog.Loss) { losses++ }}, true)
			l.pause = time.Millisecond
			l.follow(ctx, pod)
			if err := l.wait(ctx, nil, nil); err != nil {
				t.Fatal(err)
			}
			if out.String() != test.want || losses != test.losses {
				t.Errorf("output %q, want %q; %d losses, want %d", out.String(), test.want, losses, test.losses)
			}
		})
	}
}

// The stream of a container's previous run requests only the previous log, even before the
// stream of the present run has started.
func TestPreviousRunHasPreviousLog(t *testing.T) {
	pod := podOnNode(corev1.PodRunning)
	status := pod.Status.ContainerStatuses[0]
	status.RestartCount = 1
	status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ContainerID: "before"}
	known := runningStatus(status.ContainerID)
	known["lastState"] = map[string]any{"terminated": map[string]any{"containerID": "before"}}
	asked := make(chan bool, 2) // streams
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/log") {
			writeJSON(w, knownPod("u", known))
			return
		}
		select {
		case asked <- r.URL.Query().Get("previous") == "true":
		default:
		}
	}))
	defer server.Close()
	l := newLogs(testClient(t, server.URL), Streams{Out: io.Discard, Err: io.Discard}, true)
	l.pause = time.Millisecond
	s := newNodeStream(l, logPlace{}, pod.UID, status.Name)
	l.nodes[s.key()] = s
	close(s.done)
	l.beginPrevious(t.Context(), pod, status, Mark{})
	for range cap(asked) {
		if !<-asked {
			t.Error("a request is for the log of the present run")
		}
	}
	for _, s := range l.latest[s.key()] {
		s.replace()
	}
	if err := l.wait(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
}
