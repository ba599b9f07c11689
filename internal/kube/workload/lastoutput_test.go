package workload

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/containerlog"
)

// neverStarting serves two pods of a Job: one whose node announces more output than it
// has sent, and, once that is passed on, one that can never start.
type neverStarting struct{ passed chan struct{} }

func (n neverStarting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	watch, pods := r.URL.Query().Get("watch") == "true", strings.HasSuffix(r.URL.Path, "/pods")
	added := func(object any) { writeJSON(w, map[string]any{"type": "ADDED", "object": object}) }
	switch {
	case strings.Contains(r.URL.Path, "/proxy/"):
		n.serveLog(r.Context(), w)
	case !watch:
		http.NotFound(w, r)
		return
	case pods:
		added(jobPod(corev1.PodRunning))
	case strings.HasSuffix(r.URL.Path, "/jobs"):
		added(jobObject(nil))
	}
	if watch {
		endInitialEvents(w)
	}
	w.(http.Flusher).Flush()
	if watch && pods {
		select {
		case <-n.passed:
		case <-r.Context().Done():
			return
		}
		stuck := jobPod(corev1.PodPending)
		stuck.Name, stuck.UID = "q", "v"
		stuck.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "InvalidImageName"}},
		}}
		stuck.Status.StartTime = &metav1.Time{Time: time.Now()}
		added(stuck)
		w.(http.Flusher).Flush()
	}
	<-r.Context().Done()
}

// serveLog sends the second line after the next check on pods that do not start.
func (n neverStarting) serveLog(ctx context.Context, w http.ResponseWriter) {
	for _, line := range []string{"first\n", "second\n"} {
		_ = containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte(line)}.Write(w)
		to := containerlog.Progress{Position: containerlog.Position{Offset: 1}}
		if line == "first\n" {
			to.Behind = int64(len("second\n"))
		}
		_ = containerlog.WriteJSON(w, containerlog.KindPosition, to)
		w.(http.Flusher).Flush()
		if line == "first\n" {
			select {
			case <-n.passed:
				time.Sleep(2 * stuckPeriod)
			case <-ctx.Done():
			}
		}
	}
}

// When a pod can never start, the output of other pods still comes until the caller ends
// following.
func TestOutputBesidePodThatNeverStarts(t *testing.T) {
	passed := make(chan struct{})
	server := httptest.NewServer(neverStarting{passed})
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	found, err := targets([]Object{{Unstructured: &unstructured.Unstructured{Object: jobObject(nil)}}})
	if err != nil {
		t.Fatal(err)
	}
	var out syncBuffer
	var never *NeverStarts
	const want = "[p main] first\n[p main] second\n"
	first := true
	streams := Streams{Err: io.Discard, Warn: func(text string) { t.Error(text) }, Inform: func(string) {}, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}
	streams.NeverStarts = func(stuck *NeverStarts) { never = stuck }
	streams.Out = io.MultiWriter(&out, writerFunc(func() {
		if first {
			first = false
			close(passed)
		}
		if out.String() == want {
			cancel()
		}
	}))
	client := testClient(t, server.URL)
	f := &follower{
		client: client, targets: found, streams: streams,
		logs: newLogs(client, streams, false), stuck: newStuckPods(false), pulls: newPullReports(time.Now(), streams.Inform),
		shown: map[types.UID]bool{},
	}
	f.resume()
	_, err = f.run(ctx)
	if never == nil || !errors.Is(err, context.Canceled) || out.String() != want {
		t.Errorf("never starts: %v; %v, output %q; want %q", never, err, out.String(), want)
	}
}
