package workload

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/kube/containerlog"
)

// goneJob serves empty lists: the Job and its pods were deleted.
type goneJob struct {
	*node
	// instead holds the answers to requests for the Job before the true one.
	instead chan int
	// events holds the answers to requests for events; the last one stays.
	events chan []any
}

func newGoneJob(t *testing.T) goneJob {
	return goneJob{newNode(t, "default_p_u"), make(chan int, 1), make(chan []any, 2)}
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
	case strings.HasSuffix(r.URL.Path, "/pods"):
		writeJSON(w, map[string]any{"apiVersion": "v1", "kind": "PodList", "items": []any{}})
	case strings.HasSuffix(r.URL.Path, "/events"):
		var events []any
		select {
		case events = <-g.events:
			if len(g.events) == 0 {
				g.events <- events
			}
		default:
		}
		writeJSON(w, map[string]any{"apiVersion": "v1", "kind": "EventList", "items": events})
	default:
		g.node.ServeHTTP(w, r)
	}
}

// event returns an event about an object of the namespace default.
func event(reason, message string, object map[string]any) any {
	object["namespace"] = "default"
	return map[string]any{
		"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": reason, "namespace": "default"},
		"reason": reason, "message": message, "involvedObject": object, "source": map[string]any{"host": "n"},
	}
}

func jobEvent(reason, message string) any {
	return event(reason, message, map[string]any{"kind": "Job", "name": "train", "uid": "j1"})
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
		events   [][]any
		want     Result
	}{
		"unseen":                           {nil, 0, nil, Result{Code: 1, Reason: unknown}},
		"unseen, no answer":                {nil, http.StatusServiceUnavailable, nil, Result{Code: 1, Reason: unknown}},
		"seen to have ended":               {ended(Result{}), 0, nil, Result{}},
		"seen to have failed":              {ended(Result{Code: 3, Reason: "job train failed"}), 0, nil, Result{Code: 3, Reason: "job train failed"}},
		"completed":                        {nil, 0, [][]any{{jobEvent("SuccessfulCreate", "Created pod: x"), jobEvent("Completed", "Job completed")}}, Result{}},
		"completed, no answer":             {nil, http.StatusServiceUnavailable, [][]any{{jobEvent("Completed", "Job completed")}}, Result{}},
		"completed, and the event is late": {nil, 0, [][]any{{}, {jobEvent("Completed", "Job completed")}}, Result{}},
		"failed": {nil, 0, [][]any{{jobEvent("FailedCreate", "no"), jobEvent("BackoffLimitExceeded", "no more")}},
			Result{Code: 1, Reason: "job train failed: BackoffLimitExceeded: no more"}},
		"another Job of the name completed": {nil, 0, [][]any{{event("Completed", "", map[string]any{"kind": "Job", "name": "train", "uid": "j0"})}},
			Result{Code: 1, Reason: unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			gone := newGoneJob(t)
			if test.instead != 0 {
				gone.instead <- test.instead
			}
			for _, events := range test.events {
				gone.events <- events
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
	gone := newGoneJob(t)
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

// A pod may begin and end while no process follows it. Events tell its node, which still
// has the log, also of a Job whose pods are too many to be named.
func TestLogOfUnseenPodIsFollowed(t *testing.T) {
	started := event("Started", "Container started", map[string]any{"kind": "Pod", "name": "p", "uid": "u", "fieldPath": "spec.containers{main}"})
	for name, test := range map[string]struct {
		logs   []string
		made   string
		output bool
	}{
		"named":          {nil, "Created pod: p", true},
		"not of the Job": {nil, "Created pod: q", false},
		"selected":       {[]string{"job/train"}, "Created pod: p", true},
		"not selected":   {[]string{"none"}, "Created pod: p", false},
	} {
		t.Run(name, func(t *testing.T) {
			gone := newGoneJob(t)
			want := gone.writeLog(t, "0.log", 0, 1000)
			gone.events <- []any{jobEvent("SuccessfulCreate", test.made), started, jobEvent("Completed", "Job completed")}
			selection, err := NewSelection(test.logs)
			if err != nil {
				t.Fatal(err)
			}
			var out syncBuffer
			result := gone.follow(t, Streams{Out: &out, Err: io.Discard, Logs: selection, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }})
			if !test.output {
				want = ""
			}
			if result != (Result{}) || out.String() != want {
				t.Errorf("%+v, %d bytes of output, want %d", result, out.Len(), len(want))
			}
		})
	}
}

func TestPodsOfJob(t *testing.T) {
	job := Object{Unstructured: &unstructured.Unstructured{Object: jobObject(nil)}}
	about := func(message string) corev1.Event {
		return corev1.Event{Reason: jobMadePod, Message: message, InvolvedObject: corev1.ObjectReference{UID: "j1"}}
	}
	few := podsOfJob(job, []corev1.Event{about("Created pod: train-abcde")})
	many := podsOfJob(job, []corev1.Event{about("Created pod: train-abcde"), about("(combined from similar events): Created pod: train-fghij")})
	for pod, made := range map[string][2]bool{
		"train-abcde": {true, true}, "train-vwxyz": {false, true}, "train-12-vwxyz": {false, true},
		"trainer-abcde": {}, "train-set-abcde": {}, "": {},
	} {
		if got := [2]bool{few(pod), many(pod)}; got != made {
			t.Errorf("%q: %v, want %v", pod, got, made)
		}
	}
}
