package workload

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// In a cluster that others use, too, a pod may get room and nodes at any time, but an image
// that does not exist stays missing.
func TestPodsOfOtherClustersWaitForRoom(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		ends   bool
		remedy string
	}{
		"too little room": {unschedulablePod("p", "0/3 nodes are available: 3 Insufficient cpu."), false, "ask the cluster's administrator"},
		"larger than a node": {unschedulablePod("p", "0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."),
			false, "ask the cluster's administrator"},
		"no node yet":      {unschedulablePod("p", "no nodes available to schedule pods"), false, "ask the cluster's administrator"},
		"another selector": {unschedulablePod("p", "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector."), false, "node selector"},
		"a missing image":  {pendingPod("p", "ErrImagePull"), true, "a registry that the cluster's nodes can reach"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStuckPods(false)
			s.foreign = true
			s.handlePod(test.pod, start)
			err := s.overdue(start.Add(time.Hour))
			if (err != nil) != test.ends {
				t.Fatalf("got %v after an hour", err)
			}
			said := strings.Join(s.takeReports(), "\n")
			if err != nil {
				said = err.Error()
			}
			if !strings.Contains(said, test.remedy) || strings.Contains(said, "Slurm") || strings.Contains(said, "--image") {
				t.Errorf("the user reads %q, want %q", said, test.remedy)
			}
		})
	}
}
