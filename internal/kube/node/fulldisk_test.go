package node

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
)

// The kubelet prepares and releases the dynamic resources of each pod, also of those
// without claims, and a pod whose resources are not released never ends.
func TestPodsStartAndEndOnFullDisk(t *testing.T) {
	plan := testPlan()
	plan.Paths.Run = t.TempDir()
	plan.Paths.Kubelet = filepath.Join(t.TempDir(), "kubelet")
	server, err := kubeletServer(plan)
	if err != nil {
		t.Fatal(err)
	}
	config, err := containerManagerConfig(plan, server)
	if err != nil {
		t.Fatal(err)
	}
	manager, err := dra.NewManager(klog.Background(), fake.NewClientset(), config.KubeletRootDir)
	if err != nil {
		t.Fatal(err)
	}
	// As on a full disk, nothing can be written below a file, not even by root.
	err = errors.Join(os.RemoveAll(plan.Paths.Kubelet), os.WriteFile(plan.Paths.Kubelet, nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"}}
	if err := manager.PrepareResources(t.Context(), pod); err != nil {
		t.Error(err)
	}
	if err := manager.UnprepareResources(t.Context(), pod); err != nil {
		t.Error(err)
	}
}

func TestFullDiskIsNoticed(t *testing.T) {
	full := 0
	look := nodeHandler(func() {}, func() { full++ })
	for i, state := range []struct {
		pressure v1.ConditionStatus
		want     int
	}{{v1.ConditionFalse, 0}, {v1.ConditionTrue, 1}, {v1.ConditionTrue, 1}, {v1.ConditionFalse, 1}, {v1.ConditionTrue, 2}} {
		node := newNode(testPlan())
		node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: v1.NodeDiskPressure, Status: state.pressure})
		if look(node); full != state.want {
			t.Errorf("state %d: %d notices, want %d", i, full, state.want)
		}
	}
}
