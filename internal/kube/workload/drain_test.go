package workload

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	return object("Pod", "default", name, map[string]any{
		"spec":   map[string]any{"nodeName": node, "terminationGracePeriodSeconds": grace},
		"status": map[string]any{"phase": phase},
	})
}

func TestDrain(t *testing.T) {
	api := fake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{podResource: "PodList", nodeResource: "NodeList"},
		object("Node", "", "n1", nil),
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
