package workload

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

func object(kind, namespace, name string, fields map[string]any) *unstructured.Unstructured {
	content := map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"namespace": namespace, "name": name}}
	for key, value := range fields {
		content[key] = value
	}
	return &unstructured.Unstructured{Object: content}
}

func pod(name, node, phase string, grace int64) *unstructured.Unstructured {
	pod := object("Pod", "default", name, map[string]any{
		"spec":   map[string]any{"nodeName": node, "terminationGracePeriodSeconds": grace},
		"status": map[string]any{"phase": phase},
	})
	pod.SetUID(types.UID(name))
	return pod
}

func newDrainClient(objects ...runtime.Object) *fake.FakeDynamicClient {
	return fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{podResource: "PodList", nodeResource: "NodeList", budgetResource: "PodDisruptionBudgetList"}, objects...)
}

func TestDrain(t *testing.T) {
	partition := object("Node", "", "slurm-n1-main", nil)
	partition.SetLabels(map[string]string{"type": "virtual-kubelet"})
	api := newDrainClient(
		object("Node", "", "n1", nil), partition,
		pod("job", "slurm-n1-main", "Running", 30),
		pod("patient", "n1", "Running", 30),
		pod("quick", "n1", "Running", 1),
		pod("starting", "n1", "Pending", 30),
		pod("waiting", "", "Pending", 30),
		pod("ended", "n1", "Succeeded", 30),
	)
	client := &Client{dynamic: api}
	if _, err := client.Drain(t.Context(), 2500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	closed := false
	grace := map[string]int64{}
	for _, action := range api.Actions() {
		switch action := action.(type) {
		case clienttesting.PatchAction:
			closed = action.GetName() == "n1"
		case clienttesting.DeleteActionImpl:
			if !closed {
				t.Error("a pod is deleted while new ones can start")
			}
			grace[action.Name] = *action.DeleteOptions.GracePeriodSeconds
		}
	}
	want := map[string]int64{"patient": 2, "quick": 1, "starting": 2}
	if len(grace) != len(want) {
		t.Errorf("deleted %v, want %v", grace, want)
	}
	for name, seconds := range want {
		if grace[name] != seconds {
			t.Errorf("grace of pod %s is %d s, want %d s", name, grace[name], seconds)
		}
	}
}

// The controller of a DaemonSet replaces its pods on a node that is closed to others.
func TestDrainDoesNotWaitForReplacedPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newDrainClient(pod("daemon", "n1", "Running", 1), pod("slow", "n1", "Running", 20))
		api.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			name := action.(clienttesting.DeleteAction).GetName()
			time.AfterFunc(map[string]time.Duration{"daemon": time.Second, "slow": 20 * time.Second}[name], func() {
				if err := api.Tracker().Delete(podResource, "default", name); err != nil {
					t.Error(err)
				}
				if name == "daemon" {
					if err := api.Tracker().Add(pod("successor", "n1", "Running", 1)); err != nil {
						t.Error(err)
					}
				}
			})
			return true, nil, nil
		})
		drainWithin(t, api, 20*time.Second+drainPoll, Drained{Asked: 2, Ended: 2})
	})
}

// A process that hangs in the kernel keeps its pod for good.
func TestDrainDoesNotWaitForGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newDrainClient(pod("stuck", "n1", "Running", 20), pod("quick", "n1", "Running", 1))
		api.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.(clienttesting.DeleteAction).GetName() == "stuck", nil, nil
		})
		drainWithin(t, api, 20*time.Second+endMargin, Drained{Asked: 2, Ended: 1})
	})
}

// drainWithin drains in a job without a limit, in the time of synctest.
func drainWithin(t *testing.T, api *fake.FakeDynamicClient, limit time.Duration, want Drained) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	began := time.Now()
	got, err := (&Client{dynamic: api}).Drain(ctx, time.Hour)
	if took := time.Since(began); err != nil || got != want || took > limit {
		t.Errorf("%+v after %s, %v; want %+v within %s", got, took, err, want, limit)
	}
}

func TestDrainOfNodeThatHasLeft(t *testing.T) {
	client := &Client{dynamic: newDrainClient()}
	if drained, err := client.DrainNode(t.Context(), slog.New(slog.DiscardHandler), "n2-57", time.Second); err != nil || drained.Asked > 0 {
		t.Errorf("%d pods were asked, %v", drained.Asked, err)
	}
}
