package control

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kubernetes/pkg/controller/nodelifecycle"
	nodeutil "k8s.io/kubernetes/pkg/controller/util/node"

	"berth.dev/berth/internal/base/cluster"
)

// testStaleTaints adds the taint of a node that is not ready as the node controller does
// whose cache is behind. Only a node that is not ready by now gets it.
func testStaleTaints(t *testing.T, c *testCluster) {
	manager, err := parseManagerOptions(t.Context(), c.plan, nil)
	if err != nil {
		t.Fatal(err)
	}
	controllers, err := kubernetes.NewForConfig(manager.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	admin := c.client(t, cluster.UserAdmin)
	nodes := admin.CoreV1().Nodes()
	if err := registerNode(t.Context(), admin, "settled"); err != nil {
		t.Fatal(err)
	}
	tainted := func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(nodelifecycle.NotReadyTaintTemplate) })
	}
	var ready *corev1.Node
	eventually(t, "the node takes pods", func() (err error) {
		if ready, err = nodes.Get(t.Context(), "settled", metav1.GetOptions{}); err == nil && len(ready.Spec.Taints) > 0 {
			err = fmt.Errorf("it has the taints %v", ready.Spec.Taints)
		}
		return err
	})
	events, err := nodes.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=settled", ResourceVersion: ready.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	taint := func() {
		t.Helper()
		add, remove := *nodelifecycle.NotReadyTaintTemplate, *nodelifecycle.UnreachableTaintTemplate
		if !nodeutil.SwapNodeControllerTaint(t.Context(), controllers, []*corev1.Taint{&add}, []*corev1.Taint{&remove}, ready) {
			t.Error("the controller has to try again")
		}
	}
	taint()
	change := func(patch string, subresources ...string) {
		t.Helper()
		if _, err := nodes.Patch(t.Context(), "settled", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
			t.Fatal(err)
		}
	}
	change(`{"metadata":{"annotations":{"last":"event"}}}`)
	// A taint would be gone soon, because the node controller of the role removes it.
	for event := range events.ResultChan() {
		node, ok := event.Object.(*corev1.Node)
		if !ok {
			t.Fatalf("watch the node: %v", event.Object)
		}
		if tainted(node) {
			t.Errorf("a ready node has got the taints %v", node.Spec.Taints)
		}
		if node.Annotations["last"] != "" {
			break
		}
	}

	change(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status")
	taint()
	if node, err := nodes.Get(t.Context(), "settled", metav1.GetOptions{}); err != nil || !tainted(node) {
		t.Errorf("a node that is not ready has no taint: %v, %v", node.Spec.Taints, err)
	}
	if err := nodes.Delete(t.Context(), "settled", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}
