package workload

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/kube/containerlog"
)

// goneJob serves empty lists: the Job and its pods were deleted.
type goneJob struct {
	*node
	// instead holds the answers to requests for the Job before the true one.
	instead chan int
}

func (g goneJob) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Query().Get("watch") == "true":
		endInitialEvents(w)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/jobs/train"):
		code := http.StatusNotFound
		select {
		case code = <-g.instead:
		default:
		}
		http.Error(w, "no", code)
	default:
		g.node.ServeHTTP(w, r)
	}
}

// follow follows the Job from where another process was.
func (g goneJob) follow(t *testing.T, streams Streams) Result {
	t.Helper()
	server := httptest.NewServer(g)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	streams.Warn = func(text string) { t.Error(text) }
	result, err := testClient(t, server.URL).Follow(ctx, []Object{{Unstructured: &unstructured.Unstructured{Object: jobObject(nil)}}}, streams)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// A Job with ttlSecondsAfterFinished may be gone before its first list.
func TestJobThatIsGoneEndsTheRun(t *testing.T) {
	const unknown = "job train was deleted before its result was seen, so it is not known whether it succeeded"
	ended := func(result Result) *Progress {
		p := &Progress{}
		p.Apply(Step{Key: "j1", Ended: &result})
		return p
	}
	for name, test := range map[string]struct {
		progress *Progress
		instead  int
		want     Result
	}{
		"unseen":              {nil, 0, Result{Code: 1, Reason: unknown}},
		"unseen, no answer":   {nil, http.StatusServiceUnavailable, Result{Code: 1, Reason: unknown}},
		"seen to have ended":  {ended(Result{}), 0, Result{}},
		"seen to have failed": {ended(Result{Code: 3, Reason: "job train failed"}), 0, Result{Code: 3, Reason: "job train failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			gone := goneJob{newNode(t, "default_p_u"), make(chan int, 1)}
			if test.instead != 0 {
				gone.instead <- test.instead
			}
			result := gone.follow(t, Streams{Out: io.Discard, Err: io.Discard, Progress: test.progress})
			if result != test.want {
				t.Errorf("%+v, want %+v", result, test.want)
			}
		})
	}
}

// The pod of a log that was not complete is gone with the Job, but its node still has
// the log.
func TestLogOfDeletedPodIsFollowedToItsEnd(t *testing.T) {
	gone := goneJob{newNode(t, "default_p_u"), nil}
	want := gone.writeLog(t, "0.log", 0, 1000)
	var out syncBuffer
	streams := Streams{Out: &out, Err: io.Discard, Progress: &Progress{}, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}
	gone.followPart(t, streams, true, func(mark Mark) bool { return int(mark.SentOut) == len(want) })
	streams.Progress.Apply(Step{Key: "j1", Ended: &Result{}})
	want += strings.TrimPrefix(gone.writeLog(t, "0.log", 0, 2000), want)
	streams.Progress = ReadProgress(streams.Progress.String())
	result := gone.follow(t, streams)
	if result != (Result{}) || out.String() != want {
		t.Errorf("%+v, %d bytes of output, want %d", result, out.Len(), len(want))
	}
	if followed := streams.Progress.Followed(); len(followed.Marks) != 0 || len(followed.Complete) != 1 {
		t.Errorf("marks %v, complete %q", followed.Marks, followed.Complete)
	}
}
