package workload

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/containerlog"
)

// goneJob serves lists without the Job and its pods, which were deleted.
type goneJob struct {
	*node
	other any // a pod
	// instead holds the answers to requests for the Job before the true one.
	instead chan int
	// events holds the answers to requests for events; the last one stays.
	events chan []any
}

func newGoneJob(t *testing.T, pod string) goneJob {
	return goneJob{node: newNode(t, "default_"+pod+"_u"), instead: make(chan int, 1), events: make(chan []any, 2)}
}

func (g goneJob) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Query().Get("watch") == "true":
		if g.other != nil && strings.HasSuffix(r.URL.Path, "/pods") {
			writeJSON(w, map[string]any{"type": "ADDED", "object": g.other})
		}
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
			gone := newGoneJob(t, "p")
			if test.instead != 0 {
				gone.instead <- test.instead
			}
			for _, events := range test.events {
				gone.events <- events
			}
			lists := 0
			result := gone.follow(t, Streams{Out: io.Discard, Err: io.Discard, Progress: test.progress, Listed: func() { lists++ }})
			if result != test.want || lists != 1 {
				t.Errorf("%+v after %d lists, want %+v after one", result, lists, test.want)
			}
		})
	}
}

// The pod of a log that was not complete is gone with the Job, but its node still has
// the log.
func TestLogOfDeletedPodIsFollowedToItsEnd(t *testing.T) {
	gone := newGoneJob(t, "p")
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
	started := event("Started", "Container started", map[string]any{"kind": "Pod", "name": "train-abcde", "uid": "u", "fieldPath": "spec.containers{main}"})
	other := endedPod("Succeeded", 0)
	other["metadata"].(map[string]any)["uid"] = "u"
	const combined = "(combined from similar events): Created pod: train-other"
	for name, test := range map[string]struct {
		logs   []string
		made   string
		other  any
		output bool
	}{
		"named":                            {nil, "Created pod: train-abcde", nil, true},
		"not of the Job":                   {nil, "Created pod: train-other", nil, false},
		"selected":                         {[]string{"job/train"}, "Created pod: train-abcde", nil, true},
		"not selected":                     {[]string{"none"}, "Created pod: train-abcde", nil, false},
		"not named":                        {nil, combined, nil, true},
		"not named, and of another object": {nil, combined, other, false},
	} {
		t.Run(name, func(t *testing.T) {
			gone := newGoneJob(t, "train-abcde")
			gone.other = test.other
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

// The form of a pod's name tells whose it is only if no other object makes such pods.
func TestPodsOfJob(t *testing.T) {
	about := func(uid types.UID, kind, name, message string) corev1.Event {
		return corev1.Event{Reason: jobMadePod, Message: message, InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name, UID: uid}}
	}
	applied := func(kind, name string) *target {
		return &target{object: Object{Unstructured: &unstructured.Unstructured{Object: map[string]any{
			"kind": kind, "metadata": map[string]any{"name": name, "namespace": "default"},
		}}}}
	}
	const combined = "(combined from similar events): Created pod: x"
	own := []corev1.Event{about("j1", "Job", "train", "Created pod: train-named")}
	many := append(own, about("j1", "Job", "train", combined))
	for name, test := range map[string]struct {
		mode   string
		events []corev1.Event
		others []*target
		want   []string
	}{
		"few pods":            {events: own, want: []string{"train-named"}},
		"many pods":           {events: many, want: []string{"train-named", "train-abcde", "train-other"}},
		"many, with an index": {mode: "Indexed", events: many, want: []string{"train-named", "train-1-abcde", "train-12-abcde"}},
		"pods of another": {events: append(slices.Clone(many), about("r", "ReplicaSet", "t", "Created pod: train-other")),
			want: []string{"train-named", "train-abcde"}},
		"a ReplicaSet of the name": {events: append(slices.Clone(many), about("r", "ReplicaSet", "train", combined)), want: []string{"train-named"}},
		"a followed ReplicaSet":    {events: many, others: []*target{applied("ReplicaSet", "train")}, want: []string{"train-named"}},
		"a followed Pod":           {events: many, others: []*target{applied("Pod", "train-other")}, want: []string{"train-named", "train-abcde"}},
		"a followed Deployment":    {events: many, others: []*target{applied("Deployment", "train")}, want: []string{"train-named", "train-abcde", "train-other"}},
		"a Job with a number": {mode: "Indexed", events: append(slices.Clone(many), about("j2", "Job", "train-1", combined)),
			want: []string{"train-named", "train-12-abcde"}},
	} {
		job := applied("Job", "train")
		job.object.SetUID("j1")
		job.object.Object["spec"] = map[string]any{"completionMode": test.mode}
		f := &follower{targets: append(test.others, job), shown: map[types.UID]bool{"shown": true}}
		made := f.podsOfJob(job, test.events)
		var got []string
		for _, pod := range []string{"train-named", "train-abcde", "train-other", "train-1-abcde", "train-12-abcde", "trainer-abcde", "train-set-abcde", ""} {
			if made(corev1.ObjectReference{Name: pod}) {
				got = append(got, pod)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		if made(corev1.ObjectReference{Name: "train-abcde", UID: "shown"}) {
			t.Errorf("%s: a pod that exists is one of the Job's that were deleted", name)
		}
	}
}

func TestPodThatIsGoneEndsTheRun(t *testing.T) {
	const unknown = "pod train was deleted before its result was seen, so it is not known whether it succeeded"
	about := map[string]any{"kind": "Pod", "name": "train", "uid": "p1"}
	for name, test := range map[string]struct {
		event any
		want  string
	}{
		"no event of its end": {event("Killing", "Stopping container c", about), unknown},
		"deadline":            {event("DeadlineExceeded", "Pod was active too long", about), "pod train failed: DeadlineExceeded: Pod was active too long"},
		"no answer":           {nil, unknown},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if test.event == nil || !strings.HasSuffix(r.URL.Path, "/events") {
					http.Error(w, "no", http.StatusNotFound)
					return
				}
				writeJSON(w, map[string]any{"apiVersion": "v1", "kind": "EventList", "items": []any{test.event}})
			}))
			defer server.Close()
			pod := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "train", "namespace": "default", "uid": "p1"}}
			f := &follower{
				client:  testClient(t, server.URL),
				targets: []*target{{object: Object{Unstructured: &unstructured.Unstructured{Object: pod}}, pod: true, finite: true}},
				streams: Streams{Progress: &Progress{}},
			}
			f.askForAbsent(t.Context())
			if test.event == nil {
				if f.asked || f.remaining() != 1 {
					t.Error("events were not asked for again")
				}
				f.noEvents = f.noEvents.Add(-2 * eventsTimeout)
				f.askForAbsent(t.Context())
			}
			if want := (Result{Code: 1, Reason: test.want}); f.result != want || !f.asked || f.remaining() != 0 {
				t.Errorf("%+v, want %+v; %d targets remain", f.result, want, f.remaining())
			}
		})
	}
}
