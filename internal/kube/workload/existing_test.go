package workload

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/containerlog"
)

// In an existing cluster, others may free resources or add nodes at any time, but an image
// that does not exist stays missing.
func TestPodsOnExistingClustersWaitForRoom(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		ends   bool
		remedy string
	}{
		"too little room": {unschedulablePod("p", "0/3 nodes are available: 3 Insufficient cpu."), false, "ask the cluster's administrator"},
		"larger than a node": {unschedulablePod("p", "0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."),
			false, "ask the cluster's administrator"},
		"no node yet":      {unschedulablePod("p", "no nodes available to schedule pods"), false, "ask the cluster's administrator"},
		"another selector": {unschedulablePod("p", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."), false, "node selector"},
		"a missing image":  {pendingPod("p", "ErrImagePull"), true, "a registry that the cluster's nodes can reach"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStuckPods(false)
			s.existing = true
			s.handlePod(test.pod, start)
			err := s.overdue(start.Add(time.Hour))
			if (err != nil) != test.ends {
				t.Fatalf("got %v after an hour", err)
			}
			said := strings.Join(s.takeReports(), "\n")
			if err != nil {
				said = err.Error()
			}
			if !strings.Contains(said, test.remedy) || strings.Contains(said, "Slurm") || strings.Contains(said, "--image") {
				t.Errorf("the user reads %q, want %q", said, test.remedy)
			}
		})
	}
}

// Labels choose the pods of a controller, but others in a shared namespace may use the same.
func TestPodsOfOthersAreNotFollowed(t *testing.T) {
	owner := func(kind, name, uid string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID(uid), Controller: new(true)}}
	}
	for name, test := range map[string]struct {
		kind   string
		owners []metav1.OwnerReference
		owns   bool
	}{
		"a Deployment's":           {"Deployment", owner("ReplicaSet", "web-5d4f", "r1"), true},
		"another Deployment's":     {"Deployment", owner("ReplicaSet", "other-5d4f", "r2"), false},
		"a longer name":            {"Deployment", owner("ReplicaSet", "web-site-5d4f", "r3"), false},
		"a bare pod":               {"Deployment", nil, false},
		"a ReplicaSet's":           {"ReplicaSet", owner("ReplicaSet", "web", "mine"), true},
		"another ReplicaSet's":     {"ReplicaSet", owner("ReplicaSet", "other", "r2"), false},
		"a StatefulSet's":          {"StatefulSet", owner("StatefulSet", "web", "mine"), true},
		"an earlier StatefulSet's": {"StatefulSet", owner("StatefulSet", "web", "s2"), false},
		"a DaemonSet's":            {"DaemonSet", owner("DaemonSet", "web", "mine"), true},
		"a bare pod, DaemonSet":    {"DaemonSet", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			followed, err := newTarget(Object{Unstructured: &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "apps/v1", "kind": test.kind, "metadata": map[string]any{"name": "web", "uid": "mine"},
				"spec": map[string]any{"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}}, "template": map[string]any{}},
			}}})
			if err != nil {
				t.Fatal(err)
			}
			pod := pendingPod("p", "ErrImagePull")
			pod.Labels, pod.OwnerReferences = map[string]string{"app": "web", "pod-template-hash": "5d4f"}, test.owners
			if got := followed.owns(pod); got != test.owns {
				t.Errorf("got %v, want %v", got, test.owns)
			}
		})
	}
}

// On an existing cluster, a user with the role "edit" of a namespace may read logs, but may not
// send requests to nodes. One request follows the log of a container, and another one reads the
// rest. There is no request to the node.
func TestExistingClusterServesLogs(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	// The first answer ends when the end of the container is known. Otherwise, a third request
	// would ask whether the pod still exists.
	followed := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.URL.Path+"?follow="+r.URL.Query().Get("follow"))
		mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/log") {
			<-followed
			_, _ = io.WriteString(w, "2026-11-28T12:00:00.5Z one\n")
			return
		}
		http.Error(w, "forbidden", http.StatusForbidden)
	}))
	defer server.Close()
	var out syncBuffer
	l := newLogs(testClient(t, server.URL), Streams{Existing: true, Out: &out, Err: &out, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}, true)
	l.pause = time.Millisecond
	l.follow(t.Context(), podOnNode(corev1.PodSucceeded))
	close(followed)
	if err := l.wait(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if out.String() != "one\n" {
		t.Errorf("output is %q", out.String())
	}
	const log = "/api/v1/namespaces/default/pods/p/log"
	if slices.ContainsFunc(asked, func(path string) bool { return !strings.HasPrefix(path, log) }) || len(asked) > 2 {
		t.Errorf("requests: %q", asked)
	}
}

// A container whose pod was deleted before it was seen has no log at the API server.
func TestExistingClusterHasNoLogOfDeletedPod(t *testing.T) {
	var said []string
	l := newLogs(nil, Streams{Existing: true, Lose: func(text string, _ containerlog.Loss) { said = append(said, text) }}, true)
	l.followDeletedPod(t.Context(), logPlace{"default", "p", "n"}, "u", "main", time.Now())
	if err := l.wait(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if len(said) != 1 || !strings.Contains(said[0], cutByDeletion) {
		t.Errorf("the user reads %q", said)
	}
}
