package nodeloss

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestLostNodeReturns(t *testing.T) {
	other := corev1.Taint{Key: "mine", Effect: corev1.TaintEffectNoSchedule}
	pod := func(name string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u-" + "1"},
			Spec:       corev1.PodSpec{NodeName: "n2"}, Status: corev1.PodStatus{Phase: phase},
		}
	}
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewSimpleDynamicClient(scheme,
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{other}}},
		pod("runs", corev1.PodRunning), pod("done", corev1.PodSucceeded))
	// The fake cannot merge statuses. The test checks the requests instead.
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetSubresource() == "status", nil, nil
	})
	reporter := NewReporter(client)

	if err := reporter.Lose(t.Context(), "n2", "silent for 8s"); err != nil {
		t.Fatal(err)
	}
	if got := taints(t, client); !slices.Equal(got, []string{"mine", corev1.TaintNodeOutOfService}) {
		t.Errorf("taints of the lost node: %q", got)
	}
	left, err := client.Resource(podsResource).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 0 {
		t.Errorf("pods of the lost node: %d left, %v", len(left.Items), err)
	}
	if got := statuses(t, client.Actions()); !slices.Equal(got, []string{"nodes n2 NodeLost", "pods runs NodeLost"}) {
		t.Errorf("statuses written: %q", got)
	}

	if err := reporter.Regain(t.Context(), "n2"); err != nil {
		t.Fatal(err)
	}
	if got := taints(t, client); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("taints of the node that is back: %q", got)
	}
	if err := reporter.Lose(t.Context(), "n9", "silent"); err == nil {
		t.Error("a node that nobody knows was lost")
	}
}

// The API server of a control plane that was killed gives no answer for a while.
func TestRequestsWithoutAnAnswerAreRepeated(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewSimpleDynamicClient(scheme, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	silent := ""
	var answer error = &url.Error{Op: "Get", URL: "https://127.0.0.1/", Err: io.ErrUnexpectedEOF}
	client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetVerb() == silent {
			silent = ""
			return true, nil, answer
		}
		return action.GetSubresource() == "status", nil, nil
	})
	reporter := NewReporter(client)

	silent = "list"
	if err := reporter.AwaitAll(t.Context(), 1); err != nil {
		t.Error(err)
	}
	for _, silent = range []string{"get", "patch", "list"} {
		if err := reporter.Lose(t.Context(), "n2", "silent for 8s"); err != nil {
			t.Error(err)
		}
		if got := taints(t, client); !slices.Equal(got, []string{corev1.TaintNodeOutOfService}) {
			t.Errorf("taints of the lost node: %q", got)
		}
	}
	// As kube-apiserver answers during an election of etcd.
	answer = &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusInternalServerError, Message: "etcdserver: leader changed"}}
	silent = "patch"
	if err := reporter.Regain(t.Context(), "n2"); err != nil {
		t.Error(err)
	}
	if got := taints(t, client); len(got) > 0 {
		t.Errorf("taints of the node that is back: %q", got)
	}
	silent = ""
	client.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, &url.Error{Op: "Get", URL: "https://127.0.0.1/", Err: io.ErrUnexpectedEOF}
	})
	ended, end := context.WithCancel(t.Context())
	end()
	if err := reporter.Lose(ended, "n2", "silent"); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the run: %v", err)
	}
}

func TestNodeThatWillNotComeBackIsDeleted(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	client := fake.NewSimpleDynamicClient(scheme, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return action.GetSubresource() == "status", nil, nil
	})
	reporter := NewReporter(client)
	for _, what := range []string{"a node", "a node that has not registered, or is gone"} {
		if err := reporter.Retire(t.Context(), "n2", "its job has ended"); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if left, err := client.Resource(nodesResource).List(t.Context(), metav1.ListOptions{}); err != nil || len(left.Items) != 0 {
			t.Errorf("%s: %d nodes are left, %v", what, len(left.Items), err)
		}
	}
}

func TestSchedulableNodes(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	notReady := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeNotReady}}}}
	client := fake.NewSimpleDynamicClient(scheme, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &notReady)
	reporter := NewReporter(client)
	if err := reporter.AwaitAll(t.Context(), 1); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := reporter.AwaitAll(ended, 2); err == nil {
		t.Error("a node that is not ready was taken for one that takes pods")
	}
}

func taints(t *testing.T, client *fake.FakeDynamicClient) []string {
	t.Helper()
	found, err := client.Resource(nodesResource).Get(t.Context(), "n2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list, _, err := unstructured.NestedSlice(found.Object, "spec", "taints")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, taint := range list {
		keys = append(keys, taint.(map[string]any)["key"].(string))
	}
	return keys
}

// statuses returns the resource, name and reason of each status that was written.
func statuses(t *testing.T, actions []clienttesting.Action) []string {
	t.Helper()
	var written []string
	for _, action := range actions {
		patch, ok := action.(clienttesting.PatchAction)
		if !ok || patch.GetSubresource() != "status" {
			continue
		}
		var content struct {
			Status struct {
				Reason     string
				Conditions []struct{ Reason string }
			}
		}
		if err := json.Unmarshal(patch.GetPatch(), &content); err != nil {
			t.Fatal(err)
		}
		reason := content.Status.Reason
		if reason == "" {
			reason = content.Status.Conditions[0].Reason
		}
		written = append(written, patch.GetResource().Resource+" "+patch.GetName()+" "+reason)
	}
	return written
}
