package workload

import (
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestNeverStartsWithinHalfAMinute holds the tables to the 30 s of docs/jobs.md, from the
// first sign of a trouble. The clock is the test's. The kubelet repeats the sign every 5 s
// with another message, which must not postpone the end.
func TestNeverStartsWithinHalfAMinute(t *testing.T) {
	const promised, repeats = 30 * time.Second, 5 * time.Second
	signs := map[string]func(s *stuckPods, now time.Time){}
	for reason, row := range waitingReasons {
		if row.effect != reported {
			signs[reason] = func(s *stuckPods, now time.Time) {
				pod := pendingPod("a", reason)
				pod.Status.ContainerStatuses[0].State.Waiting.Message = "at " + now.String()
				s.handlePod(pod, now)
			}
		}
	}
	for reason, row := range podEvents {
		if row.trouble.class != "" && row.trouble.effect != reported {
			signs["event "+reason] = func(s *stuckPods, now time.Time) {
				s.handlePod(pendingPod("a", "ContainerCreating"), now)
				s.handleEvent(&corev1.Event{
					InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "a", UID: "a"}, Reason: reason, Message: "at " + now.String(),
					Type: corev1.EventTypeWarning, LastTimestamp: metav1.NewTime(now), Source: corev1.EventSource{Component: "kubelet"},
				}, now)
			}
		}
	}
	for _, message := range []string{"0/1 nodes are available: 1 Insufficient memory", "0/1 nodes are available: 1 node(s) had untolerated taint(s)"} {
		signs[message] = func(s *stuckPods, now time.Time) { s.handlePod(unschedulablePod("a", message), now) }
	}
	if len(signs) < 20 {
		t.Errorf("%d signs, which is too few", len(signs))
	}
	for _, name := range slices.Sorted(maps.Keys(signs)) {
		s, start := newStuckPods(false), time.Unix(1000, 0)
		ended := time.Duration(-1)
		for after := time.Duration(0); after <= promised && ended < 0; after += time.Second {
			if after%repeats == 0 {
				signs[name](s, start.Add(after))
			}
			if s.overdue(start.Add(after)) != nil {
				ended = after
			}
		}
		if ended < 0 {
			t.Errorf("%s: the run has not ended after %s", name, promised)
		}
	}
}
