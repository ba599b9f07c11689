package interlink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ktesting "k8s.io/client-go/testing"

	"berth.dev/berth/test/interlink/virtualnode"
)

// TestCreate checks that all forms of the request create the same pod, and objects that
// it owns.
func TestCreate(t *testing.T) {
	foreign, objects := foreignPod()
	request := requestFor(t, foreign, objects)
	for name, form := range map[string]any{"virtual node": request, "plugin": request.ForPlugin(), "plugin 0.4": []any{request.ForPlugin()}} {
		t.Run(name, func(t *testing.T) {
			f := newFinder()
			s := start(t, f)
			// A real API server gives the pod a UID.
			f.api.PrependReactor("create", "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
				action.(ktesting.CreateAction).GetObject().(*corev1.Pod).UID = "local"
				return false, nil, nil
			})
			reply := must[virtualnode.Created](t, s, "POST", "/create", form)
			if want := (virtualnode.Created{PodUID: uid, PodJID: "12/first/interlink-team/train-0a1b2c3d"}); reply != want {
				t.Errorf("the reply is %+v, not %+v", reply, want)
			}
			pod, err := f.api.CoreV1().Pods("interlink-team").Get(t.Context(), "train-0a1b2c3d", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if len(pod.Spec.SchedulingGates) != 0 {
				t.Error("the pod still waits for its objects")
			}
			spec := pod.Spec
			if spec.NodeName+spec.SchedulerName+spec.ServiceAccountName+spec.PriorityClassName != "" || spec.NodeSelector != nil || spec.Tolerations != nil || spec.ImagePullSecrets != nil {
				t.Errorf("the pod has fields of the other cluster: %+v", spec)
			}
			if *spec.AutomountServiceAccountToken || spec.Hostname != "train" || pod.Labels["app"] != "train" || spec.Containers[0].ReadinessProbe == nil {
				t.Errorf("the pod lacks what it should have: %+v", pod)
			}
			if env := spec.Containers[0].Env; env[0].Value != `it's "quoted"` || env[1].Value != "train" {
				t.Errorf("the environment is %+v", env)
			}
			var names []string
			for _, volume := range spec.Volumes {
				names = append(names, volume.Name)
			}
			if want := []string{"config", "keys", "all", "scratch", "kube-api-access-x7k2p"}; !slices.Equal(names, want) {
				t.Fatalf("the volumes are %q, not %q", names, want)
			}
			configMap, err := f.api.CoreV1().ConfigMaps(pod.Namespace).Get(t.Context(), spec.Volumes[0].ConfigMap.Name, metav1.GetOptions{})
			if err != nil || configMap.Data["a"] != "line 1\nline 2\n" || configMap.OwnerReferences[0].UID != "local" {
				t.Errorf("the ConfigMap is %+v, %v", configMap, err)
			}
			secret, err := f.api.CoreV1().Secrets(pod.Namespace).Get(t.Context(), spec.Volumes[1].Secret.SecretName, metav1.GetOptions{})
			if err != nil || !bytes.Equal(secret.Data["id"], []byte{0, 1, 2}) || secret.Type != "" || secret.OwnerReferences[0].UID != "local" {
				t.Errorf("the Secret is %+v, %v", secret, err)
			}
			all := spec.Volumes[2].Projected.Sources
			if items := all[0].Secret.Items; len(items) != 1 || items[0].Path != "deep/er" || *items[0].Mode != 0o400 {
				t.Errorf("the projected files are %+v", items)
			}
			if all[1].DownwardAPI.Items[0].Path != "cpu" {
				t.Errorf("the file that interLink does not send is lost: %+v", all)
			}
			namespace, err := f.api.CoreV1().Namespaces().Get(t.Context(), "interlink-team", metav1.GetOptions{})
			if err != nil || namespace.Labels[levelLabel] != "baseline" {
				t.Errorf("the namespace is %+v, %v", namespace, err)
			}
			events, err := f.api.CoreV1().Events(pod.Namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil || len(events.Items) != 1 {
				t.Fatalf("the Events are %+v, %v", events, err)
			}
			for _, part := range []string{"team/train", "kubectl exec", "'berth kubectl 12 exec' on login1", "imagePullSecrets, nodeSelector, priorityClassName, schedulerName, serviceAccountName, tolerations"} {
				if !strings.Contains(events.Items[0].Message, part) {
					t.Errorf("%q is not in the Event: %s", part, events.Items[0].Message)
				}
			}
		})
	}
}

// TestCreateAgain checks that a failed request leaves nothing, that it succeeds later, and
// that a further repetition changes nothing.
func TestCreateAgain(t *testing.T) {
	foreign, objects := foreignPod()
	request := requestFor(t, foreign, objects).ForPlugin()
	f := newFinder()
	broken := true
	f.api.PrependReactor("create", "secrets", func(ktesting.Action) (bool, runtime.Object, error) {
		return broken, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "", errors.New("exceeded quota"))
	})
	s := start(t, f)
	if code, text := call(t, s, "POST", "/create", request); code != http.StatusForbidden || !strings.Contains(text, "exceeded quota") {
		t.Fatalf("%d %s", code, text)
	}
	pods := f.api.CoreV1().Pods("interlink-team")
	if list, err := pods.List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Fatalf("a pod that cannot start is left: %+v, %v", list, err)
	}
	broken = false
	first := must[virtualnode.Created](t, s, "POST", "/create", request)
	if again := must[virtualnode.Created](t, s, "POST", "/create", request); again != first {
		t.Errorf("the replies are %+v and %+v", first, again)
	}
	if code, _ := call(t, s, "POST", "/create", map[string]any{"pod": foreign}); code == http.StatusOK {
		t.Error("a request without the ConfigMaps succeeds")
	}
	list, err := pods.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || len(list.Items[0].Spec.SchedulingGates) != 0 {
		t.Errorf("the pods are %+v, %v", list, err)
	}
}

// TestCreateAfterKill checks that the pod that a killed server has left without its objects
// fails after a while, unless another server completes it.
func TestCreateAfterKill(t *testing.T) {
	foreign, objects := foreignPod()
	request := requestFor(t, foreign, objects).ForPlugin()
	content, err := json.Marshal(request)
	if err != nil {
		t.Fatal(err)
	}
	read, err := readCreate(content)
	if err != nil {
		t.Fatal(err)
	}
	begun, err := translate(read)
	if err != nil {
		t.Fatal(err)
	}
	f := newFinder()
	s := start(t, f)
	pods := f.api.CoreV1().Pods("interlink-team")
	status := func() corev1.ContainerState {
		statuses := must[[]virtualnode.Status](t, s, "GET", "/status", []*corev1.Pod{foreign})
		if len(statuses) != 1 {
			t.Fatalf("the statuses are %+v", statuses)
		}
		return statuses[0].Containers[0].State
	}
	begun.pod.CreationTimestamp = metav1.Now()
	if _, err := pods.Create(t.Context(), begun.pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if state := status(); state.Waiting == nil {
		t.Errorf("a new pod is %+v", state)
	}
	begun.pod.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	if _, err := pods.Update(t.Context(), begun.pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if state := status(); state.Terminated == nil || state.Terminated.Message != errGated.Error() {
		t.Errorf("an old pod is %+v", state)
	}
	must[virtualnode.Created](t, s, "POST", "/create", request)
	pod, err := pods.Get(t.Context(), "train-0a1b2c3d", metav1.GetOptions{})
	if err != nil || isGated(pod) {
		t.Errorf("the pod still waits: %+v, %v", pod, err)
	}
	secrets, err := f.api.CoreV1().Secrets("interlink-team").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) != 3 { // keys, all, the token
		t.Errorf("there are %d Secrets, %v", len(secrets.Items), err)
	}
}

// TestAPIServerAway checks that requests outlast temporary errors of the API server.
func TestAPIServerAway(t *testing.T) {
	foreign, objects := foreignPod()
	f := newFinder()
	s := start(t, f)
	failures := []error{io.ErrUnexpectedEOF, apierrors.NewServiceUnavailable("starting"), apierrors.NewInternalError(errors.New("etcdserver: leader changed"))}
	for i, kind := range []string{"get namespaces", "create pods", "create secrets", "patch pods", "delete pods"} {
		verb, resource, _ := strings.Cut(kind, " ")
		failed := false
		f.api.PrependReactor(verb, resource, func(ktesting.Action) (bool, runtime.Object, error) {
			again := failed
			failed = true
			return !again, nil, failures[i%len(failures)]
		})
	}
	must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, foreign, objects))
	must[string](t, s, "POST", "/delete", foreign)
}

// TestSuccessor checks that a new pod of the same name, such as a StatefulSet's, gets its
// own local pod.
func TestSuccessor(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	foreign, objects := foreignPod()
	must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, foreign, objects))
	foreign.UID = "ffffffff-0000-4000-8000-00000000000b"
	reply := must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, foreign, objects))
	if reply.PodJID != "12/first/interlink-team/train-ffffffff" {
		t.Errorf("the JobID is %s", reply.PodJID)
	}
}

// TestDelete checks both methods of /delete, and that a repetition succeeds.
func TestDelete(t *testing.T) {
	for _, method := range []string{"POST", "DELETE"} {
		f := newFinder()
		s := start(t, f)
		foreign, objects := foreignPod()
		must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, foreign, objects))
		for range 2 {
			if reply := must[string](t, s, method, "/delete", foreign); reply != "deleted" {
				t.Errorf("the reply is %q", reply)
			}
		}
		list, err := f.api.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 0 {
			t.Errorf("the pods are %+v, %v", list, err)
		}
	}
}

// TestDeleteElsewhere checks that a pod is deleted in the cluster that its JobID names, although
// the server sends pods to another one now.
func TestDeleteElsewhere(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	foreign, objects := foreignPod()
	foreign.Annotations = map[string]string{virtualnode.JobID: must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, foreign, objects)).PodJID}
	first := f.api
	close(f.lost)
	f.replace("13", "second")
	s = start(t, f)
	if code, text := call(t, s, "POST", "/delete", foreign); code != http.StatusServiceUnavailable || !strings.Contains(text, "may still run in the berth cluster of job 12: no answer") {
		t.Errorf("the other cluster does not answer: %d %s", code, text)
	}
	f.mu.Lock()
	f.other = first
	f.mu.Unlock()
	if code, _ := call(t, s, "POST", "/delete", foreign); code != http.StatusServiceUnavailable {
		t.Errorf("the server connects again at once: %d", code)
	}
	s = start(t, f)
	for range 2 {
		must[string](t, s, "POST", "/delete", foreign)
	}
	if list, err := first.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("the pods are %+v, %v", list, err)
	}
	f.mu.Lock()
	f.other, f.ended["12"] = nil, "job 12 has ended (COMPLETED)"
	f.mu.Unlock()
	must[string](t, start(t, f), "POST", "/delete", foreign)
}

// TestDeleteBesideASilentCluster checks that a cluster that does not answer holds up no deletion in
// another one.
func TestDeleteBesideASilentCluster(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	foreign, objects := foreignPod()
	foreign.Annotations = map[string]string{virtualnode.JobID: must[virtualnode.Created](t, s, "POST", "/create", requestFor(t, foreign, objects)).PodJID}
	first := f.api
	close(f.lost)
	f.replace("13", "second")
	f.mu.Lock()
	f.other, f.silent, f.asked = first, "11", make(chan struct{})
	f.mu.Unlock()
	s = start(t, f)
	silent := foreign.DeepCopy()
	silent.UID = "0a1b2c3d-0000-4000-8000-00000000000b"
	parts := strings.SplitN(foreign.Annotations[virtualnode.JobID], "/", 4)
	silent.Annotations = map[string]string{virtualnode.JobID: strings.Join([]string{"11", parts[1], parts[2], localName(silent.Name, silent.UID)}, "/")}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.remove(ctx, silent) }()
	<-f.asked
	must[string](t, s, "POST", "/delete", foreign)
	if list, err := first.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("the pods are %+v, %v", list, err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, errElsewhere) {
		t.Errorf("the deletion in the silent cluster: %v", err)
	}
}

// TestDeleteDuringCreate checks that a pod that was deleted before its creation was complete
// does not run.
func TestDeleteDuringCreate(t *testing.T) {
	foreign, objects := foreignPod()
	request := requestFor(t, foreign, objects)
	for name, overlap := range map[string]func(*fakeFinder, *Server){
		"before": func(_ *fakeFinder, s *Server) { must[string](t, s, "POST", "/delete", foreign) },
		// The deletion finds no pod immediately before the API server makes it.
		"meanwhile": func(f *fakeFinder, s *Server) {
			f.api.PrependReactor("create", "pods", func(ktesting.Action) (bool, runtime.Object, error) {
				s.removed.add(uid)
				return false, nil, nil
			})
		},
		// The first attempt to delete the pod fails, and so does the reply to its creation.
		"meanwhile, with failures": func(f *fakeFinder, s *Server) {
			for _, verb := range []string{"create", "delete"} {
				failed := false
				f.api.PrependReactor(verb, "pods", func(action ktesting.Action) (bool, runtime.Object, error) {
					if failed {
						return false, nil, nil
					}
					failed = true
					if verb == "create" {
						s.removed.add(uid)
						_ = f.api.Tracker().Add(action.(ktesting.CreateAction).GetObject())
					}
					return true, nil, io.ErrUnexpectedEOF
				})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFinder()
			s := start(t, f)
			overlap(f, s)
			if code, text := call(t, s, "POST", "/create", request); code != http.StatusUnprocessableEntity || !strings.Contains(text, "has deleted the pod") {
				t.Errorf("%d %s", code, text)
			}
			creations := 0
			for _, action := range f.api.Actions() {
				if action.Matches("create", "pods") {
					creations++
				}
			}
			if name == "before" && creations != 0 || creations > 1 {
				t.Errorf("the pod was created %d times", creations)
			}
			list, err := f.api.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) != 0 {
				t.Errorf("the pods are %+v, %v", list, err)
			}
		})
	}
}

// TestRemovedIsBounded checks that a server forgets old deletions.
func TestRemovedIsBounded(t *testing.T) {
	var r removed
	r.add("old")
	r.at["old"] = time.Now().Add(-removedTTL - time.Second)
	r.add("new")
	if r.has("old") || !r.has("new") {
		t.Errorf("it remembers %v", r.at)
	}
}

// TestForeignNamespace checks that the server uses no namespace that it did not create.
func TestForeignNamespace(t *testing.T) {
	f := newFinder()
	s := start(t, f)
	if _, err := f.api.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "interlink-team"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	foreign, objects := foreignPod()
	if code, text := call(t, s, "POST", "/create", requestFor(t, foreign, objects)); code == http.StatusOK || !strings.Contains(text, "is not from berth serve interlink") {
		t.Errorf("%d %s", code, text)
	}
}

// TestOtherLevel checks that a server with another Pod Security level does not change the
// level of a namespace that it shares.
func TestOtherLevel(t *testing.T) {
	f := newFinder()
	foreign, objects := foreignPod()
	must[virtualnode.Created](t, start(t, f), "POST", "/create", requestFor(t, foreign, objects))
	other := start(t, f)
	other.level = "privileged"
	foreign.UID = "ffffffff-0000-4000-8000-00000000000b"
	code, text := call(t, other, "POST", "/create", requestFor(t, foreign, objects))
	if want := "'berth kubectl 12 label --overwrite namespace interlink-team pod-security.kubernetes.io/enforce=privileged' on login1"; code != http.StatusUnprocessableEntity || !strings.Contains(text, want) {
		t.Errorf("%d %s", code, text)
	}
	namespace, err := f.api.CoreV1().Namespaces().Get(t.Context(), "interlink-team", metav1.GetOptions{})
	if err != nil || namespace.Labels[levelLabel] != "baseline" {
		t.Errorf("the namespace is %+v, %v", namespace, err)
	}
}

// TestDeleteCopy checks that the end of another pod's cluster does not make a deletion
// succeed.
func TestDeleteCopy(t *testing.T) {
	f := newFinder()
	f.ended["11"] = "job 11 has ended (CANCELLED)"
	s := New(f, "baseline", "login1", slog.New(slog.DiscardHandler)) // it never connects
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	foreign, _ := foreignPod()
	foreign.Annotations = map[string]string{virtualnode.JobID: "11/x/interlink-team/train-ffffffff"}
	if err := s.remove(ended, foreign); !errors.Is(err, errNoCluster) {
		t.Errorf("the error is %v", err)
	}
	foreign.Annotations[virtualnode.JobID] = "11/x/interlink-team/train-0a1b2c3d"
	if err := s.remove(ended, foreign); err != nil {
		t.Errorf("a pod whose own cluster has ended: %v", err)
	}
}
