package partitions

import (
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/kube/control/controltest"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// objects holds the objects of a controller.
type objects struct {
	mu  sync.Mutex
	all map[kinds.Reference]*unstructured.Unstructured
}

func (o *objects) jobs() Jobs {
	return Jobs{
		Object: func(ref kinds.Reference) *unstructured.Unstructured {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.all[ref]
		},
		All: func() []kinds.Reference {
			o.mu.Lock()
			defer o.mu.Unlock()
			var all []kinds.Reference
			for ref := range o.all {
				all = append(all, ref)
			}
			return all
		},
	}
}

func reference(name string) kinds.Reference {
	return kinds.Reference{Kind: kinds.SlurmJob, Namespace: "default", Name: name}
}

func uidOf(name string) types.UID { return types.UID("uid-of-" + name) }

// set sets the status of an object.
func (o *objects) set(t testing.TB, name string, status kinds.Status) {
	t.Helper()
	if status.JobID == "" {
		status.JobID = "7"
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{"status": fields}}
	object.SetName(name)
	object.SetNamespace("default")
	object.SetUID(uidOf(name))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[reference(name)] = object
}

// TestJobs shows jobs as pods.
func TestJobs(t *testing.T) {
	server := controltest.Start(t)
	config := server.Config(t, "admin", "system:masters")
	var writes atomic.Int64
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.Method != http.MethodGet && strings.Contains(request.URL.Path, "/pods") {
				writes.Add(1)
			}
			return next.RoundTrip(request)
		})
	})
	o := &objects{all: map[kinds.Reference]*unstructured.Unstructured{}}
	f := &fixture{T: t, config: config, client: kubernetes.NewForConfigOrDie(config), jobs: o.jobs(), logs: netip.MustParseAddrPort("10.1.2.3:4567")}
	f.set(nil, mainLine, smallLine)
	stop := f.run()
	node := f.awaitNode("slurm-login1-main", func(*corev1.Node) bool { return true })
	if got := node.Status; len(got.Addresses) != 1 || got.Addresses[0].Address != "10.1.2.3" || got.DaemonEndpoints.KubeletEndpoint.Port != 4567 {
		t.Errorf("got %+v", got)
	}
	change := func(name string, status kinds.Status) {
		t.Helper()
		o.set(t, name, status)
		f.server.Changed(reference(name))
	}

	// Two partitions are no partition yet.
	change("cow", kinds.Status{State: "PENDING", Reason: "Resources", Partition: "main,small"})
	change("cow", kinds.Status{State: "PENDING", Reason: "ReqNodeNotAvail, UnavailableNodes:n1", Partition: "main", ExpectedStart: "2026-01-02T03:04:05Z"})
	first := f.awaitJob("cow-job", func(pod *corev1.Pod, c corev1.ContainerStatus) bool {
		return pod.Status.Phase == corev1.PodPending && c.State.Waiting != nil && c.State.Waiting.Reason == "ReqNodeNotAvail"
	})
	if want := "job 7 waits: ReqNodeNotAvail, UnavailableNodes:n1; Slurm expects to start it at 2026-01-02T03:04:05Z"; first.Status.ContainerStatuses[0].State.Waiting.Message != want {
		t.Errorf("got %q", first.Status.ContainerStatuses[0].State.Waiting.Message)
	}
	if owner := metav1.GetControllerOf(first); first.Spec.NodeName != "slurm-login1-main" || owner == nil || owner.UID != uidOf("cow") {
		t.Errorf("got %+v", first)
	}
	running := kinds.Status{State: "RUNNING", Partition: "main", Started: "2026-01-02T03:04:05Z"}
	isRunning := func(restarts int32) func(*corev1.Pod, corev1.ContainerStatus) bool {
		return func(pod *corev1.Pod, c corev1.ContainerStatus) bool {
			return pod.Status.Phase == corev1.PodRunning && c.State.Running != nil && c.Ready && c.RestartCount == restarts
		}
	}
	change("cow", running)
	f.awaitJob("cow-job", isRunning(0))
	if object := f.server.Shown("default", "cow-job"); object == nil || object.GetUID() != uidOf("cow") {
		t.Errorf("shown: %v", object)
	}
	change("cow", kinds.Status{State: "PENDING", Reason: "BeginTime", Partition: "main", Restarts: 1}) // requeued
	f.awaitJob("cow-job", func(pod *corev1.Pod, c corev1.ContainerStatus) bool {
		return pod.Status.Phase == corev1.PodPending && c.RestartCount == 1 && !c.Ready
	})
	running.Restarts = 1
	change("cow", running)
	f.awaitJob("cow-job", isRunning(1))

	// A pod that somebody deletes is created again, also one with a grace period.
	if err := f.client.CoreV1().Pods("default").Delete(t.Context(), "cow-job", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(30))}); err != nil {
		t.Error(err)
	}
	f.awaitJob("cow-job", func(pod *corev1.Pod, c corev1.ContainerStatus) bool {
		return pod.UID != first.UID && isRunning(1)(pod, c)
	})

	// The end.
	done := kinds.Status{State: "COMPLETED", Partition: "main", Restarts: 1, ExitCode: ptr.To(0), Started: "2026-01-02T03:04:05Z", Ended: "2026-01-02T03:05:05Z"}
	change("cow", done)
	f.awaitJob("cow-job", func(pod *corev1.Pod, c corev1.ContainerStatus) bool {
		return pod.Status.Phase == corev1.PodSucceeded && c.State.Terminated != nil && c.State.Terminated.FinishedAt.Minute() == 5 && c.State.Terminated.Reason == "Completed"
	})
	change("fox", running)
	f.awaitJob("fox-job", isRunning(1))
	change("fox", kinds.Status{State: "TIMEOUT", Message: "job 7: TIMEOUT", Partition: "main", Signal: 15, ExitCode: ptr.To(0), Ended: "2026-01-02T03:05:05Z"})
	f.awaitJob("fox-job", func(pod *corev1.Pod, c corev1.ContainerStatus) bool {
		return pod.Status.Phase == corev1.PodFailed && pod.Status.Message == "job 7: TIMEOUT" && c.State.Terminated.ExitCode == 143 && c.State.Terminated.Reason == "TIMEOUT"
	})
	// A job that ended before its partition was known.
	change("quick", kinds.Status{State: "COMPLETED", Partition: "small", ExitCode: ptr.To(0), Ended: kinds.Time(time.Now())})
	f.awaitJob("quick-job", func(pod *corev1.Pod, _ corev1.ContainerStatus) bool {
		return pod.Status.Phase == corev1.PodSucceeded && pod.Spec.NodeName == "slurm-login1-small"
	})
	// After the end, a deleted pod does not return.
	if err := f.client.CoreV1().Pods("default").Delete(t.Context(), "quick-job", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	f.awaitNoPod("quick-job")
	if f.server.Shown("default", "quick-job") != nil {
		t.Error("quick is shown without a pod")
	}

	// Another pod has the name.
	f.pod("taken-job", nil)
	foreign := f.awaitPod("taken-job", failed)
	change("taken", running)
	f.await("problem", func() error {
		if got := f.server.Problem(reference("taken")); !strings.HasPrefix(got, "pod taken-job exists, and is not the pod of this job") {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	if pod := f.awaitPod("taken-job", failed); pod.UID != foreign.UID || f.server.Shown("default", "taken-job") != nil {
		t.Errorf("got %+v", pod)
	}
	if err := f.client.CoreV1().Pods("default").Delete(t.Context(), "taken-job", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	f.awaitJob("taken-job", isRunning(1))
	f.await("no problem", func() error {
		if got := f.server.Problem(reference("taken")); got != "" {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})

	// A pod that claims to show a job shows none unless it has the name for it, and the object's UID.
	f.pod("claim", &metav1.OwnerReference{APIVersion: "wlm.sylabs.io/v1alpha1", Kind: "SlurmJob", Name: "cow", UID: uidOf("cow"), Controller: ptr.To(true)})
	f.awaitPod("claim", failed)
	o.set(t, "late", running)
	f.pod("late-job", &metav1.OwnerReference{APIVersion: "wlm.sylabs.io/v1alpha1", Kind: "SlurmJob", Name: "late", UID: "another", Controller: ptr.To(true)})
	f.awaitCalls(3)
	for _, name := range []string{"claim", "late-job"} {
		if object := f.server.Shown("default", name); object != nil {
			t.Errorf("%s shows %v", name, object)
		}
	}

	// 10,000 objects whose jobs ended long ago need no requests, nor do pods that are up to date.
	if err := f.client.CoreV1().Pods("default").Delete(t.Context(), "late-job", metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))}); err != nil {
		t.Error(err)
	}
	f.server.Changed(reference("late"))
	f.awaitJob("late-job", isRunning(1))
	stop()
	o.set(t, "quick", done) // otherwise a new process makes its pod again
	for i := range 10000 {
		o.set(t, fmt.Sprint("old", i), done)
	}
	before := writes.Load()
	f.run()
	f.awaitCalls(3)
	for ref := range o.all {
		f.server.Changed(ref)
	}
	f.await("an empty queue", func() error {
		if n := f.server.running().queue.Len(); n > 0 {
			return fmt.Errorf("%d objects", n)
		}
		return nil
	})
	f.awaitCalls(3)
	if n := writes.Load() - before; n != 0 {
		t.Errorf("%d requests changed pods", n)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

// awaitJob waits until want accepts a pod and its container.
func (f *fixture) awaitJob(name string, want func(*corev1.Pod, corev1.ContainerStatus) bool) *corev1.Pod {
	f.Helper()
	return f.awaitPod(name, func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) == 1 && want(pod, pod.Status.ContainerStatuses[0])
	})
}

// The operators' names do not collide for the names of examples.
func TestPodNames(t *testing.T) {
	var names []string
	for _, kind := range kinds.All() {
		names = append(names, kinds.Reference{Kind: kind, Name: "cow"}.PodName())
	}
	if want := []string{"cow-bridge-pod", "cow-job", "cow-wlm-job"}; !reflect.DeepEqual(slices.Sorted(slices.Values(names)), want) {
		t.Errorf("got %q", names)
	}
}
