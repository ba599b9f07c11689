package workload

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/kube/containerlog"
)

// fakeAPI implements just enough of an API server to follow one pod: watches
// that list the existing objects and never report changes, and a log.
type fakeAPI struct {
	pod map[string]any
	// log is the answer to a request without follow. A request with follow gets
	// the first part and no end.
	log string
	// deleted: the pod is, after it was seen.
	deleted bool
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	switch {
	case strings.HasSuffix(r.URL.Path, "/log"):
		f.serveLog(w, r, query.Get("follow") == "true", query.Get("stream"))
	case query.Get("watch") == "true":
		// The client asks for the list as the first events of the watch.
		if strings.HasSuffix(r.URL.Path, "/pods") {
			writeJSON(w, map[string]any{"type": "ADDED", "object": f.pod})
		}
		endInitialEvents(w)
		if f.deleted && strings.HasSuffix(r.URL.Path, "/pods") {
			writeJSON(w, map[string]any{"type": "DELETED", "object": f.pod})
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeAPI) serveLog(w http.ResponseWriter, r *http.Request, follow bool, stream string) {
	if stream != "Stdout" {
		return
	}
	if !follow {
		io.WriteString(w, f.log)
		return
	}
	io.WriteString(w, f.log[:len(f.log)/2])
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func writeJSON(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// syncBuffer can be written to by several streams.
type syncBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *syncBuffer) Write(data []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(data)
}

func endedPod(phase string, code int) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": "main", "namespace": "default", "uid": "u1", "resourceVersion": "1"},
		"spec":     map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "c", "image": "i"}}},
		"status": map[string]any{
			"phase": phase,
			"containerStatuses": []any{map[string]any{
				"name": "c", "containerID": "containerd://1",
				"state": map[string]any{"terminated": map[string]any{
					"exitCode": code, "reason": "Error", "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:01Z",
				}},
			}},
		},
	}
}

func testClient(t *testing.T, server string) *Client {
	t.Helper()
	client, err := NewClient(fmt.Appendf(nil, "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n", server))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func TestFollowPodToItsEnd(t *testing.T) {
	for _, test := range []struct {
		phase string
		code  int
	}{{"Succeeded", 0}, {"Failed", 42}} {
		t.Run(test.phase, func(t *testing.T) {
			api := &fakeAPI{pod: endedPod(test.phase, test.code), log: "first\nsecond\nlast without end of line"}
			server := httptest.NewServer(api)
			defer server.Close()
			client := testClient(t, server.URL)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var out, errors syncBuffer
			result, err := client.Follow(ctx, []Object{{Unstructured: &unstructured.Unstructured{Object: api.pod}}}, Streams{
				Out: &out, Err: &errors, Warn: func(text string) { t.Errorf("unexpected note: %s", text) },
			})
			if err != nil {
				t.Fatal(err)
			}
			if result.Code != test.code {
				t.Errorf("code %d, want %d", result.Code, test.code)
			}
			if test.code != 0 && !strings.Contains(result.Reason, "container c") {
				t.Errorf("reason %q names no container", result.Reason)
			}
			if out.String() != api.log {
				t.Errorf("output is %q, want %q", out.String(), api.log)
			}
		})
	}
}

func TestLinesAreLabelledByContainer(t *testing.T) {
	var out syncBuffer
	s := &stream{logs: newLogs(nil, Streams{Out: &out}, false), pod: "p", container: "c"}
	for _, part := range []string{"one\ntw", "o\n", "", "three"} {
		if _, err := s.Write([]byte(part)); err != nil {
			t.Fatal(err)
		}
	}
	s.flush()
	if want := "[p c] one\n[p c] two\n[p c] three\n"; out.String() != want {
		t.Errorf("output is %q, want %q", out.String(), want)
	}
}

func TestRunEndsWithDeletedPod(t *testing.T) {
	for name, status := range map[string]map[string]any{
		"before it starts": {"phase": "Pending"},
		// The pod's node is lost: nobody reports how its container ended, and its
		// log hangs.
		"while it runs": {"phase": "Running", "containerStatuses": []any{map[string]any{
			"name": "c", "containerID": "containerd://1",
			"state": map[string]any{"running": map[string]any{"startedAt": "2026-01-01T00:00:00Z"}},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := endedPod("", 0)
			pod["status"] = status
			api := &fakeAPI{pod: pod, log: "first\nsecond\n", deleted: true}
			server := httptest.NewServer(api)
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			result, err := testClient(t, server.URL).Follow(ctx, []Object{{Unstructured: &unstructured.Unstructured{Object: pod}}}, Streams{
				Out: io.Discard, Err: io.Discard, Warn: func(text string) { t.Errorf("unexpected note: %s", text) },
			})
			if err != nil {
				t.Fatal(err)
			}
			if result.Code != 1 || !strings.Contains(result.Reason, "pod main was deleted") {
				t.Errorf("%+v, want failure because of the deletion", result)
			}
		})
	}
}

// containerd gives the zero of Unix time for a container that it could not start. Such a
// container may have no log, which is no loss.
func TestContainerThatCouldNotBeStartedHasNotRun(t *testing.T) {
	for at, want := range map[metav1.Time]bool{{}: false, metav1.Unix(0, 0): false, metav1.Unix(1e9, 0): true} {
		status := corev1.ContainerStatus{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: at}}}
		if started(status) != want {
			t.Errorf("started at %v: %v", at, !want)
		}
	}
}

func TestEvictedPodFailure(t *testing.T) {
	pod := &corev1.Pod{Status: corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Evicted", Message: "The node was low on resource: ephemeral-storage. ",
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "Error"}},
		}},
	}}
	code, reason := failure(pod)
	if want := "Evicted: The node was low on resource: ephemeral-storage."; code != 137 || reason != want {
		t.Errorf("%d, %q; want %q", code, reason, want)
	}
}

// endInitialEvents ends the initial list of a watch.
func endInitialEvents(w http.ResponseWriter) {
	writeJSON(w, map[string]any{"type": "BOOKMARK", "object": map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]any{"k8s.io/initial-events-end": "true"}},
	}})
}

// completeJob serves a Job that is complete, or has failed, and the watch of a pod on a node. The Job is
// seen once the log of the pod is followed.
type completeJob struct {
	*node
	pod *corev1.Pod
	// listed are the pods of the Job.
	listed []any
	// deleted, where set, is the last state of the pod. It comes when the Job has been
	// asked for its pods.
	deleted        *corev1.Pod
	failed         bool
	followed, seen chan struct{}
}

func newCompleteJob(t *testing.T) *completeJob {
	return &completeJob{node: newNode(t, "default_p_u"), pod: jobPod(corev1.PodRunning), followed: make(chan struct{}, 1), seen: make(chan struct{}, 1)}
}

func jobPod(phase corev1.PodPhase) *corev1.Pod {
	pod := podOnNode(phase)
	pod.TypeMeta, pod.ResourceVersion = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, "1"
	controller := true
	pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Job", Name: "train", UID: "j1", Controller: &controller}}
	return pod
}

func (c *completeJob) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	event := func(kind string, object any) { writeJSON(w, map[string]any{"type": kind, "object": object}) }
	notify := func(happened chan struct{}) {
		select {
		case happened <- struct{}{}:
		default:
		}
	}
	await := func(happens chan struct{}) {
		select {
		case <-happens:
		case <-r.Context().Done():
		}
	}
	pods := strings.HasSuffix(r.URL.Path, "/pods")
	switch watch := r.URL.Query().Get("watch") == "true"; {
	case !watch && pods:
		writeJSON(w, map[string]any{"apiVersion": "v1", "kind": "PodList", "items": c.listed})
		notify(c.seen)
		return
	case !watch:
		notify(c.followed)
		c.node.ServeHTTP(w, r)
		return
	case pods:
		event("ADDED", c.pod)
	case strings.HasSuffix(r.URL.Path, "/jobs"):
		await(c.followed)
		end := "Complete"
		if c.failed {
			end = "Failed"
		}
		event("ADDED", jobObject(map[string]any{"conditions": []any{map[string]any{"type": end, "status": "True", "reason": "R", "message": "M"}}}))
	}
	endInitialEvents(w)
	w.(http.Flusher).Flush()
	if pods && c.deleted != nil {
		await(c.seen)
		event("DELETED", c.deleted)
		w.(http.Flusher).Flush()
	}
	<-r.Context().Done()
}

// A Job may be seen to end before its pod: the two are watched separately.
func TestJobSeenToEndBeforeItsPod(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		t.Run(fmt.Sprintf("deleted=%v", deleted), func(t *testing.T) {
			job := newCompleteJob(t)
			want := job.writeLog(t, "0.log", 0, 10)
			ended := jobPod(corev1.PodSucceeded)
			ended.Status.ContainerStatuses[0].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: metav1.Now()}}
			if deleted {
				job.listed, job.deleted = []any{}, ended
			} else {
				job.listed = []any{ended}
			}
			server := httptest.NewServer(job)
			defer server.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var out syncBuffer
			result, err := testClient(t, server.URL).Follow(ctx, []Object{{Unstructured: &unstructured.Unstructured{Object: jobObject(nil)}}},
				Streams{Out: &out, Err: io.Discard, Warn: func(text string) { t.Error(text) }, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }})
			if err != nil || result.Code != 0 || out.String() != want {
				t.Errorf("%+v, %v, output %q; want %q", result, err, out.String(), want)
			}
		})
	}
}

// The pod of a lost node is deleted as soon as it has failed. The Job may be seen to fail before the
// last state of the pod, which contains the reason.
func TestFailedJobReportsItsPodOnALostNode(t *testing.T) {
	job := newCompleteJob(t)
	job.writeLog(t, "0.log", 0, 10)
	lost := jobPod(corev1.PodFailed)
	lost.Status.Reason, lost.Status.Message = nodeLost, "lost node n1: it is silent"
	lost.Status.ContainerStatuses[0].LastTerminationState.Terminated = &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"}
	job.listed, job.deleted, job.failed = []any{}, lost, true
	server := httptest.NewServer(job)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	result, err := testClient(t, server.URL).Follow(ctx, []Object{{Unstructured: &unstructured.Unstructured{Object: jobObject(nil)}}},
		Streams{Out: io.Discard, Err: io.Discard, Warn: func(string) {}, Lose: func(string, containerlog.Loss) {}})
	if want := "job train failed: R: M; pod p: NodeLost: lost node n1: it is silent"; err != nil || result.Code == 0 || result.Reason != want {
		t.Errorf("%+v, %v; want %s", result, err, want)
	}
}

// The log of a server does not end, and must not keep a run from its end.
func TestSelectedServerDoesNotHoldUpTheEnd(t *testing.T) {
	running := newCompleteJob(t)
	running.pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5d4f", UID: "r1", Controller: new(true)}}
	running.pod.Labels = map[string]string{"app": "web", "pod-template-hash": "5d4f"}
	running.listed = []any{}
	running.writeLog(t, "0.log", 0, 2)
	// Its runtime still has the log open.
	log, err := os.OpenFile(filepath.Join(running.dir, "0.log"), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	api := httptest.NewServer(running)
	defer api.Close()
	deployment := map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment", "metadata": map[string]any{"name": "web", "namespace": "default", "uid": "d1"},
		"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "main", "image": "i"}}}},
		},
	}
	selection, err := NewSelection([]string{"app=web"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var out syncBuffer
	result, err := testClient(t, api.URL).Follow(ctx, []Object{
		{Unstructured: &unstructured.Unstructured{Object: jobObject(nil)}}, {Unstructured: &unstructured.Unstructured{Object: deployment}},
	}, Streams{Out: &out, Err: io.Discard, Logs: selection, Warn: func(text string) { t.Error(text) }, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }})
	if want := "[p main] line 0\n[p main] line 1\n"; err != nil || result.Code != 0 || out.String() != want {
		t.Errorf("%+v, %v, output %q; want %q", result, err, out.String(), want)
	}
}

// failedJob serves a job that has failed. Its pod's last state is only in the
// list: the watch of pods is late.
type failedJob struct{ *fakeAPI }

func (f failedJob) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Query().Get("watch") == "true" && strings.HasSuffix(r.URL.Path, "/jobs"):
		writeJSON(w, map[string]any{"type": "ADDED", "object": jobObject(map[string]any{"failed": 1, "conditions": []any{map[string]any{
			"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "Job has reached the specified backoff limit",
		}}})})
		f.fakeAPI.ServeHTTP(w, r)
	case r.URL.Query().Get("labelSelector") == "batch.kubernetes.io/controller-uid=j1":
		writeJSON(w, map[string]any{"apiVersion": "v1", "kind": "PodList", "items": []any{f.pod}})
	case strings.HasSuffix(r.URL.Path, "/log"):
		f.fakeAPI.ServeHTTP(w, r)
	default:
		<-r.Context().Done()
	}
}

func jobObject(status map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": "batch/v1", "kind": "Job",
		"metadata": map[string]any{"name": "train", "namespace": "default", "uid": "j1", "resourceVersion": "1"},
		"spec":     map[string]any{"template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}}}},
		"status":   status,
	}
}

func TestFailedJobReportsItsPod(t *testing.T) {
	pod := endedPod("Failed", 3)
	pod["metadata"].(map[string]any)["ownerReferences"] = []any{map[string]any{"kind": "Job", "name": "train", "uid": "j1", "controller": true}}
	status := pod["status"].(map[string]any)["containerStatuses"].([]any)[0].(map[string]any)
	delete(status, "containerID") // its log is another test's
	terminated := status["state"].(map[string]any)["terminated"].(map[string]any)
	follow := func() (Result, error) {
		server := httptest.NewServer(failedJob{&fakeAPI{pod: pod}})
		defer server.Close()
		limit, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		ctx, cancel := context.WithCancelCause(limit)
		defer cancel(nil)
		return testClient(t, server.URL).Follow(ctx, []Object{{Unstructured: &unstructured.Unstructured{Object: jobObject(nil)}}},
			Streams{Out: io.Discard, Err: io.Discard, Warn: func(string) {}, NeverStarts: func(never *NeverStarts) { cancel(never) }})
	}
	terminated["message"] = "no input"
	result, err := follow()
	const want = "job train failed: BackoffLimitExceeded: Job has reached the specified backoff limit; pod main: container c: Error, exit code 3: no input"
	if err != nil || result.Code != 3 || result.Reason != want {
		t.Errorf("%+v, %v; want code 3, %s", result, err, want)
	}

	delete(terminated, "startedAt")
	terminated["reason"], terminated["message"] = "StartError", `exec: "nothere": executable file not found in $PATH`
	result, err = follow()
	if err == nil || !strings.Contains(err.Error(), `container c: image i has no program "nothere" in its PATH`) {
		t.Errorf("%+v, %v; want an error that names the program", result, err)
	}
}
