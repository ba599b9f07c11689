package pilots

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// TestMeasure checks when nodes that are ready end or cause the pause of a group of pilots.
func TestMeasure(t *testing.T) {
	large, small := plan.Size{MilliCPU: 8000, Memory: 16 << 30}, plan.Size{MilliCPU: 1000, Memory: 1 << 30}
	room := func(cpus string) plan.Node {
		node := &corev1.Node{Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpus), corev1.ResourceMemory: resource.MustParse("20Gi")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		}}
		return plan.Node{Node: node}
	}
	for _, test := range []struct {
		name   string
		size   plan.Size
		joined bool
		nodes  []plan.Node
		before *failure
		// count is the number of failures after it.
		count int
	}{
		{"a large node that is well ends the pause", large, false, []plan.Node{room("8")}, &failure{count: 3, size: large}, 0},
		{"a small node does not show that large ones are well", small, false, []plan.Node{room("1")}, &failure{count: 3, size: large}, 3},
		{"a large node shows that small ones are well", large, false, []plan.Node{room("8")}, &failure{count: 3, size: small}, 0},
		{"a node that is too small", large, false, []plan.Node{room("4")}, &failure{count: 3, size: large}, 4},
		{"the second node is too small", large, false, []plan.Node{room("8"), room("4")}, nil, 1},
		{"a node whose devices are not known yet", plan.Size{MilliCPU: 1000, Devices: map[corev1.ResourceName]int64{"nvidia.com/gpu": 1}}, false, []plan.Node{room("1")}, nil, 0},
		{"an earlier loop has measured the node", large, true, []plan.Node{room("4")}, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				p := &pilot{record: record{UID: "p", Request: plan.Request{Size: test.size, Nodes: len(test.nodes)}, status: status{Job: "100"}}}
				p.Joined = test.joined
				if test.before != nil {
					b.failures[failureKey(p.Request)] = test.before
				}
				for range 2 { // a node is measured once
					b.judge(p, true, input{nodesOf: map[string][]plan.Node{"p": test.nodes}}, time.Now())
					time.Sleep(longestPause + time.Second)
				}
				count := 0
				if f := b.failures[failureKey(p.Request)]; f != nil {
					count = f.count
				}
				if count != test.count {
					t.Errorf("%d failures, want %d", count, test.count)
				}
			})
		})
	}
}

// TestMemoryForFiles checks that only pilots with the options of a node that had less memory than was
// requested request more, for a time.
func TestMemoryForFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		join := func(option, cpus, memory string) {
			p := &pilot{record: record{UID: "p", Request: plan.Request{Options: []string{option}, Size: plan.Size{MilliCPU: 2000, Memory: 2 << 30}, Nodes: 1}}}
			b.measure(p, []plan.Node{{Node: &corev1.Node{Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse(cpus), corev1.ResourceMemory: resource.MustParse(memory),
			}}}}})
		}
		join("--partition=cpus", "1", "2Gi")
		join("--partition=memory", "2", "1Gi")
		for option, want := range map[string]bool{"--partition=cpus": false, "--partition=memory": true, "--partition=other": false} {
			if got := b.nodeWith([]string{option}).FilesInMemory; got != want {
				t.Errorf("%s: more memory is requested: %t, want %t", option, got, want)
			}
		}
		time.Sleep(longestHeld + time.Second)
		b.forget(time.Now())
		if b.nodeWith([]string{"--partition=memory"}).FilesInMemory {
			t.Error("more memory is still requested")
		}
	})
}

// TestFailingPodsBringFewPilots checks that a controller whose pods fail at once, each on a node for
// itself, gets ever fewer nodes, and that other controllers and long pods are not held.
func TestFailingPodsBringFewPilots(t *testing.T) {
	of := func(controller string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"slurm.berth.dev/time": "10"}
			pod.Spec.NodeSelector = map[string]string{cluster.ForLabel: plan.ForValue("pod " + pod.Name)}
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: "Trainer", Name: controller, UID: types.UID(controller), Controller: new(true)}}
		}
	}
	for _, test := range []struct {
		name        string
		runs        time.Duration
		least, most int
	}{
		{"pods fail at once", 0, 4, 10},
		{"pods run for some time", 2 * soon, 20, 40},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				var pod *corev1.Pod
				var ran, failed int
				for second := range 3600 {
					switch {
					case pod == nil:
						failed++
						pod = b.waitingPod(fmt.Sprint("p", failed), of("t"))
					case pod.Status.StartTime != nil:
						if time.Since(pod.Status.StartTime.Time) >= test.runs {
							pod.Status.Phase = corev1.PodFailed
							pod = nil
						}
					default:
						for uid, p := range b.pilots {
							if p.Only == "pod "+string(pod.UID) && b.slurm.states[uid].State == slurm.Pending {
								b.slurm.states[uid] = queue.State{ID: p.Job, State: slurm.Running, Nodes: "n2"}
								pod.Spec.NodeName, pod.Status.StartTime = b.join(p, nil).Name, new(metav1.Now())
								ran++
							}
						}
					}
					b.run(1)
					if second == 1800 {
						before := len(b.slurm.jobs)
						other := b.waitingPod("other", of("other"))
						b.run(3)
						if len(b.slurm.jobs) == before || b.problem(other) != "" {
							t.Errorf("another controller gets no job: %s", b.problem(other))
						}
						_ = b.view.podStore.Delete(other)
					}
				}
				if ran < test.least || ran > test.most {
					t.Errorf("%d pods had a node in an hour, want %d to %d", ran, test.least, test.most)
				}
				want := "of Trainer t failed within 1m0s on the node of job"
				if pod != nil && test.runs == 0 && !strings.Contains(b.problem(pod), want) {
					t.Errorf("the event is %q, want one with %q", b.problem(pod), want)
				}
			})
		})
	}
}
