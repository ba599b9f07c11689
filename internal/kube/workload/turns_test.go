package workload

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"berth.dev/berth/internal/kube/containerlog"
)

// Plain output does not name its container, so that of the next pod of a Job follows
// the whole output of the one before it, whoever reads slowly.
func TestPlainOutputOfPodsIsNotMixed(t *testing.T) {
	for absent := range 3 { // of the two pods' nodes, so many do not have the role
		n := newNode(t, "default_p_u")
		first := n.writeLog(t, "0.log", 0, 30_000)
		n.breakAfter.Store(700_000) // more than one batch
		second := "of the second pod\n"
		given := make(chan struct{})
		closeGiven := sync.OnceFunc(func() { close(given) })
		give := func(w http.ResponseWriter) {
			_ = http.NewResponseController(w).Flush()
			closeGiven()
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.URL.Query().Get("stream") == "Stdout" && strings.Contains(r.URL.Path, "second"):
				_, _ = io.WriteString(w, second)
				give(w)
			case r.URL.Query().Get("stream") == "Stdout":
				_, _ = io.WriteString(w, first)
			case r.URL.Query().Get("stream") == "Stderr":
			case absent == 2, strings.Contains(r.URL.Path, "second") && (absent > 0 || r.URL.Query().Has(containerlog.EndedParam)):
				http.Error(w, "no", http.StatusNotFound)
			case strings.Contains(r.URL.Path, "second"):
				err := errors.Join(containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte(second)}.Write(w),
					containerlog.WriteJSON(w, containerlog.KindPosition, containerlog.Progress{Position: containerlog.Position{Offset: 1}}),
					containerlog.Frame{Kind: containerlog.KindEnd}.Write(w))
				if err != nil {
					t.Error(err)
				}
				give(w)
			default:
				n.ServeHTTP(w, r)
			}
		}))
		t.Cleanup(server.Close)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		t.Cleanup(cancel)
		started := make(chan struct{})
		var out syncBuffer
		begin := sync.OnceFunc(func() {
			close(started)
			<-given
			time.Sleep(100 * time.Millisecond) // until the second pod's output is there; the test is weaker without
		})
		l := newLogs(testClient(t, server.URL), Streams{
			Out:  writerOf(func(data []byte) { begin(); _, _ = out.Write(data) }),
			Err:  io.Discard,
			Lose: func(text string, _ containerlog.Loss) { t.Error(text) },
		}, true)
		l.pause = time.Millisecond
		l.follow(ctx, podOnNode(corev1.PodRunning))
		if absent < 2 {
			<-started
		}
		l.follow(ctx, podOnNode(corev1.PodSucceeded))
		next := podOnNode(corev1.PodSucceeded)
		next.Name, next.UID, next.Status.ContainerStatuses[0].ContainerID = "second", "second", "second"
		l.follow(ctx, next)
		if err := l.wait(ctx, nil, nil); err != nil {
			t.Fatal(err)
		}
		if got := out.String(); got != first+second {
			t.Errorf("%d absent: %d bytes, the second pod's at %d of %d", absent, len(got), strings.Index(got, second), len(first))
		}
	}
}

// A process that continues lists the pods in any order. The first turn has the stream
// that had it in the process before; pods that were deleted are older than others.
func TestTurnsAfterAnotherProcess(t *testing.T) {
	var turns turns
	turns.unordered = true
	newest := &nodeStream{created: time.Unix(2, 0)}
	older := &nodeStream{created: time.Unix(1, 0)}
	deleted := &nodeStream{}
	writing := &nodeStream{created: time.Unix(3, 0), begun: true}
	for _, s := range []*nodeStream{newest, older, deleted, writing} {
		s.done = make(chan struct{})
		turns.add(s)
		if isClosed(s.turn) {
			t.Error("a turn before all streams are known")
		}
	}
	turns.sort()
	order := []*nodeStream{writing, deleted, older, newest}
	for i, s := range order {
		for j, other := range order {
			if isClosed(other.turn) != (j <= i) {
				t.Errorf("when %d streams have ended, stream %d has its turn: %v", i, j, isClosed(other.turn))
			}
		}
		close(s.done)
		turns.pass()
	}
}

// A node without the role has just said so, and the API server was not asked yet.
func TestTurnIsKeptUntilAPIServerIsAsked(t *testing.T) {
	l := newLogs(nil, Streams{}, true)
	pod := podOnNode(corev1.PodSucceeded)
	status := pod.Status.ContainerStatuses[0]
	s := newNodeStream(l, logPlace{pod.Namespace, pod.Name, pod.Spec.NodeName}, pod.UID, status.Name)
	l.nodes[s.key()], l.pods[string(pod.UID)] = s, pod
	l.turns.add(s)
	s.end(false)
	s.absent = true
	close(s.done)
	next := &nodeStream{done: make(chan struct{})}
	l.turns.add(next)
	if isClosed(next.turn) {
		t.Error("the next pod has the turn")
	}
	l.followed[status.ContainerID] = []*stream{}
	l.turns.pass()
	if !isClosed(next.turn) {
		t.Error("the next pod has no turn")
	}
}
