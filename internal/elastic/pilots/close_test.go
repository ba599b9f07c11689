package pilots

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"berth.dev/berth/internal/job/slurm"
)

// TestNodesThatDoNotLeaveAreOpen checks that a node that a loop has closed takes pods again if it
// does not leave, also if the request after that failed or the loop was killed. A node that
// somebody else has closed stays closed.
func TestNodesThatDoNotLeaveAreOpen(t *testing.T) {
	ours := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2-21", Labels: map[string]string{jobLabel: "21"}}}
	theirs := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n3-21", Labels: map[string]string{jobLabel: "21"}}, Spec: corev1.NodeSpec{Unschedulable: true}}
	client := fake.NewClientset(ours, theirs)
	l := newTestLoop(&slurmStub{})
	l.core = client.CoreV1()
	// look makes the view equal to the cluster, and reports which node is closed.
	look := func() (first, second bool) {
		nodes, err := l.core.Nodes().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(nodes.Items) != 2 {
			t.Fatal(err)
		}
		for i := range nodes.Items {
			_ = l.view.nodeStore.Add(&nodes.Items[i])
		}
		return nodes.Items[0].Spec.Unschedulable, nodes.Items[1].Spec.Unschedulable
	}
	look()
	runs := status{Job: "21", Released: true, Joined: true, State: slurm.Running}
	p := &pilot{record: record{UID: "pilot-7-x", status: runs}, saved: runs, exists: true, idling: true}
	l.pilots["pilot-7-x"] = p
	unable := errors.New("no answer")
	client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return unable != nil, nil, unable })
	if err := l.steps(t.Context(), p); !errors.Is(err, unable) || p.Leaving {
		t.Errorf("without an answer: %v, %+v", err, p)
	}
	if first, _ := look(); !first {
		t.Error("the node is open while its pods are read")
	}
	p.idling = false // a pod has come meanwhile, or this is another loop
	l.input(metav1.Now().Time)
	if !p.hasWork() {
		t.Fatal("nobody opens the node")
	}
	if err := l.steps(t.Context(), p); err != nil || p.hasWork() {
		t.Errorf("%v, %+v", err, p)
	}
	if first, second := look(); first || !second {
		t.Errorf("closed: %v %v, want only the second node", first, second)
	}
	if l.input(metav1.Now().Time); p.hasWork() {
		t.Error("an open node is opened again")
	}
	unable = nil
	p.idling = true
	if err := l.steps(t.Context(), p); err != nil || !p.Leaving {
		t.Errorf("an idle pilot does not leave: %v, %+v", err, p)
	}
}
