package workload

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const taintedMessage = "0/1 nodes are available: 1 node(s) had untolerated taint(s). preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."

func taintedNode(name string, keys ...string) corev1.Node {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, key := range keys {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	return node
}

// partitionNode returns the Node of a Slurm partition.
func partitionNode() corev1.Node {
	node := taintedNode("slurm-n1-main", "virtual-kubelet.io/provider")
	node.Labels = map[string]string{"type": "virtual-kubelet"}
	return node
}

// TestMessagesBesidePartitions: the taint of the Nodes of Slurm partitions is never the reason why a
// pod waits.
func TestMessagesBesidePartitions(t *testing.T) {
	const crowdedOut = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: 0/2 nodes are available: 1 No preemption victims found for incoming pod, 1 Preemption is not helpful for scheduling."
	const large = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s). preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	const selected = "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s). preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
	const ports = "0/3 nodes are available: 1 node(s) didn't have free ports for the requested pod ports, 2 node(s) had untolerated taint(s)."
	for message, want := range map[string]struct {
		class             class
		tooLarge, tainted bool
		words             string
	}{
		crowdedOut:     {class: classCapacity, words: "--cpus-per-task"},
		large:          {class: classCapacity, tooLarge: true, words: "--cpus-per-task"},
		selected:       {class: classNeeds, words: "change the pod's node selector"},
		ports:          {class: classCapacity, words: "another hostPort"},
		taintedMessage: {class: classTaint, tainted: true, words: "add a toleration"},
	} {
		pod := unschedulablePod("a", message)
		got := diagnosis{partitions: true}.troubleOf(pod)
		if got.class != want.class || got.tooLarge != want.tooLarge || got.tainted != want.tainted || !strings.Contains(got.err.Remedy, want.words) {
			t.Errorf("%s: got %+v, %+v", message, got, got.err)
		}
	}
}

// TestPodOfPartition: the next pod would fail, too.
func TestPodOfPartition(t *testing.T) {
	pod := unschedulablePod("a", "")
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, "NotASlurmJob", "node slurm-n1-main runs no pods: create a SlurmJob"
	if got := (diagnosis{}).rejected(pod); got == nil || got.effect != certain || got.err.Error() != "pod a cannot start: NotASlurmJob: node slurm-n1-main runs no pods; create a SlurmJob" {
		t.Errorf("got %+v, %v", got, got.err)
	}
}

func TestTimeoutDependsOnTaint(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		nodes []corev1.Node
		// after reports that an earlier pod has run and ended.
		after       bool
		waits, ends time.Duration
		words       []string
	}{
		"nodes unknown": {
			waits: 15 * time.Second, ends: 25 * time.Second,
			words: []string{"untolerated", "toleration"},
		},
		"not ready": {
			nodes: []corev1.Node{taintedNode("n1", corev1.TaintNodeNotReady)},
			waits: 15 * time.Second, ends: 25 * time.Second,
			words: []string{"node n1 has the taint node.kubernetes.io/not-ready:NoSchedule", "--debug-dir"},
		},
		"gone, not noticed yet": {
			nodes: []corev1.Node{taintedNode("n1")},
			waits: 15 * time.Second, ends: 25 * time.Second,
		},
		"pressure from the start": {
			nodes: []corev1.Node{taintedNode("n1", corev1.TaintNodeDiskPressure)},
			waits: 15 * time.Second, ends: 25 * time.Second,
			words: []string{"disk-pressure", "--state-dir"},
		},
		"pressure by an earlier pod": {
			nodes: []corev1.Node{taintedNode("n1", corev1.TaintNodeMemoryPressure)},
			after: true,
			waits: 50 * time.Second, ends: 70 * time.Second,
			words: []string{"memory-pressure", "--mem"},
		},
		"closed, and the node of a Slurm partition": {
			nodes: []corev1.Node{partitionNode(), taintedNode("n1", corev1.TaintNodeUnschedulable)},
			waits: 4 * time.Second, ends: 6 * time.Second,
			words: []string{"node n1 has the taint", "kubectl uncordon n1"},
		},
		"closed": {
			nodes: []corev1.Node{taintedNode("n1", corev1.TaintNodeUnschedulable)},
			waits: 4 * time.Second, ends: 6 * time.Second,
			words: []string{"kubectl uncordon n1"},
		},
		"the user's": {
			nodes: []corev1.Node{taintedNode("n1", corev1.TaintNodeNotReady, "example.test/mine")},
			waits: 4 * time.Second, ends: 6 * time.Second,
			words: []string{"example.test/mine:NoSchedule", "kubectl taint node n1 example.test/mine-"},
		},
		"tolerated": {
			nodes: []corev1.Node{taintedNode("n1", "example.test/known", corev1.TaintNodeNotReady)},
			waits: 15 * time.Second, ends: 25 * time.Second,
			words: []string{"not-ready"},
		},
		"another node may come": {
			nodes: []corev1.Node{taintedNode("n1", "example.test/mine"), taintedNode("n2", corev1.TaintNodeUnreachable)},
			waits: 15 * time.Second, ends: 25 * time.Second,
			words: []string{"node n2"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStuckPods(false)
			if test.after {
				s.handlePod(runningPod("before"), start.Add(-time.Second))
				s.forget("before", start)
			}
			pod := unschedulablePod("a", taintedMessage)
			pod.Spec.Tolerations = []corev1.Toleration{{Key: "example.test/known", Operator: corev1.TolerationOpExists}}
			s.handlePod(pod, start)
			if !s.tainted() {
				t.Fatal("the nodes are not looked at")
			}
			s.handleNodes(test.nodes)
			if err := s.overdue(start.Add(test.waits)); err != nil {
				t.Errorf("gives up after %s: %v", test.waits, err)
			}
			err := s.overdue(start.Add(test.ends))
			var never *NeverStarts
			if !errors.As(err, &never) {
				t.Fatalf("after %s: %v, want a reason", test.ends, err)
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%v does not say %q", err, word)
				}
			}
		})
	}
}

func TestRepelledPodIsScheduledLater(t *testing.T) {
	start := time.Unix(1000, 0)
	s := newStuckPods(false)
	s.handlePod(unschedulablePod("a", taintedMessage), start)
	// Another pod got the room, and the scheduler may report that late.
	s.handlePod(unschedulablePod("a", "Insufficient cpu"), start.Add(15*time.Second))
	if err := s.overdue(start.Add(16 * time.Second)); err != nil {
		t.Errorf("gives up at once: %v", err)
	}
	if err := s.overdue(start.Add(25 * time.Second)); err == nil {
		t.Error("waits for ever")
	}
}

func TestNonexistentNode(t *testing.T) {
	start := time.Unix(1000, 0)
	later := start.Add(3 * time.Second)
	for name, test := range map[string]struct {
		node    string
		started bool
		ends    bool
	}{
		"unknown":                 {node: "n9", ends: true},
		"known":                   {node: "n1"},
		"lost, with a pod it had": {node: "n9", started: true},
		"not given to any node":   {},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStuckPods(false)
			pod := pendingPod("a", "")
			pod.Spec.NodeName = test.node
			if test.started {
				now := metav1.NewTime(start)
				pod.Status.StartTime = &now
			}
			s.handlePod(pod, start)
			s.handleUnknownNodes([]corev1.Node{taintedNode("n1")}, later)
			if err := s.overdue(later.Add(19 * time.Second)); err != nil {
				t.Errorf("gives up too early: %v", err)
			}
			err := s.overdue(later.Add(20 * time.Second))
			if (err != nil) != test.ends || test.ends && !strings.Contains(err.Error(), "NodeNotFound: there is no node n9; correct spec.nodeName") {
				t.Errorf("%v, want an end: %v", err, test.ends)
			}
		})
	}
}
