package pilots

import (
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"berth.dev/berth/internal/elastic/plan"
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
		{"an earlier loop has measured the node", large, true, []plan.Node{room("4")}, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				p := &pilot{record: record{UID: "p", Request: plan.Request{Size: test.size, Nodes: len(test.nodes)}, status: status{Job: "100", State: slurm.Running}}}
				if test.joined {
					p.seen = len(test.nodes)
				}
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
