package workload

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func pendingPod(uid, reason string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)},
		Status: corev1.PodStatus{
			Phase: corev1.PodPending,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name:  "main",
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}},
			}},
		},
	}
}

func unschedulablePod(uid, message string) *corev1.Pod {
	pod := pendingPod(uid, "")
	pod.Status.ContainerStatuses = nil
	pod.Status.Conditions = []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: message,
	}}
	return pod
}

func runningPod(uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func TestTimeoutDependsOnReason(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		pod    *corev1.Pod
		noPull bool
		// The pod still waits at the time waits, and has failed at the time ends. A
		// negative time is not checked.
		waits, ends time.Duration
	}{
		"never pull":      {pod: pendingPod("a", "ErrImageNeverPull"), waits: -1, ends: 0},
		"pull":            {pod: pendingPod("a", "ErrImagePull"), waits: 10 * time.Second, ends: 15 * time.Second},
		"pull, forbidden": {pod: pendingPod("a", "ImagePullBackOff"), noPull: true, waits: -1, ends: 0},
		"configuration":   {pod: pendingPod("a", "CreateContainerConfigError"), waits: 15 * time.Second, ends: 25 * time.Second},
		"too large":       {pod: unschedulablePod("a", "Insufficient memory"), waits: 4 * time.Second, ends: 6 * time.Second},
		"tainted":         {pod: unschedulablePod("a", "0/1 nodes are available: 1 node(s) had untolerated taint(s)"), waits: 15 * time.Second, ends: 25 * time.Second},
		"being created":   {pod: pendingPod("a", "ContainerCreating"), waits: time.Hour, ends: -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStuckPods(test.noPull)
			s.handlePod(test.pod, start)
			if test.waits >= 0 {
				if err := s.overdue(start.Add(test.waits)); err != nil {
					t.Errorf("gives up after %s: %v", test.waits, err)
				}
			}
			if test.ends >= 0 {
				var never *NeverStarts
				if err := s.overdue(start.Add(test.ends)); !errors.As(err, &never) || never.Remedy == "" {
					t.Errorf("after %s: %v, want a reason with a remedy", test.ends, err)
				}
			}
		})
	}
}

func TestPodWithoutRoomWaitsForRunningPods(t *testing.T) {
	start := time.Unix(1000, 0)
	s := newStuckPods(false)
	s.handlePod(runningPod("first"), start)
	s.handlePod(unschedulablePod("second", "Insufficient cpu"), start)
	if err := s.overdue(start.Add(time.Hour)); err != nil {
		t.Errorf("gives up although a pod runs: %v", err)
	}
	done := runningPod("first")
	done.Status.Phase = corev1.PodSucceeded
	s.handlePod(done, start.Add(time.Hour))
	if err := s.overdue(start.Add(time.Hour + time.Second)); err != nil {
		t.Errorf("gives up before the scheduler could take its turn: %v", err)
	}
	if err := s.overdue(start.Add(2 * time.Hour)); err == nil {
		t.Error("waits although nothing runs any more")
	}
}

func TestScheduledPodCountsBeforeItRuns(t *testing.T) {
	start := time.Unix(1000, 0)
	s := newStuckPods(false)
	first := pendingPod("first", "ContainerCreating")
	first.Spec.NodeName = "n1"
	s.handlePod(first, start)
	s.handlePod(unschedulablePod("second", "Insufficient cpu"), start)
	if err := s.overdue(start.Add(time.Minute)); err != nil {
		t.Errorf("gives up although a pod is about to run: %v", err)
	}
	s.forget("first", start.Add(time.Minute))
	if err := s.overdue(start.Add(2 * time.Minute)); err == nil {
		t.Error("waits for a pod that has been deleted")
	}
}

func TestPodThatNeverFitsDoesNotWait(t *testing.T) {
	start := time.Unix(1000, 0)
	for message, waits := range map[string]bool{
		"0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.":              false,
		"0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.":          true,
		"0/1 nodes are available: 1 Insufficient example.test/device. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.": true,
	} {
		s := newStuckPods(false)
		s.handlePod(runningPod("server"), start)
		s.handlePod(unschedulablePod("large", message), start)
		if err := s.overdue(start.Add(10 * time.Second)); (err == nil) != waits {
			t.Errorf("%s: %v, want to wait: %v", message, err, waits)
		}
	}
}

func TestDeletedPodIsNotAwaited(t *testing.T) {
	start := time.Unix(1000, 0)
	s := newStuckPods(false)
	s.handlePod(unschedulablePod("a", "Insufficient cpu"), start)
	s.forget("a", start)
	if err := s.overdue(start.Add(time.Hour)); err != nil {
		t.Errorf("gives up for a pod that is gone: %v", err)
	}
}

func TestPullBackOffKeepsItsClock(t *testing.T) {
	start := time.Unix(1000, 0)
	s := newStuckPods(false)
	s.handlePod(pendingPod("a", "ErrImagePull"), start)
	s.handlePod(pendingPod("a", "ImagePullBackOff"), start.Add(11*time.Second))
	if err := s.overdue(start.Add(13 * time.Second)); err == nil {
		t.Error("the clock was set back by a change of words")
	}
}

func TestFailedMountShowsInEventsOnly(t *testing.T) {
	start := time.Unix(1000, 0)
	s := newStuckPods(false)
	s.handlePod(pendingPod("a", "ContainerCreating"), start)
	s.handleEvent(&corev1.Event{
		Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: `configmap "settings" not found`,
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: "a", UID: "a"},
	}, start)
	if err := s.overdue(start.Add(25 * time.Second)); err == nil {
		t.Error("waits for ever")
	}
	s.handlePod(runningPod("a"), start.Add(26*time.Second))
	if err := s.overdue(start.Add(time.Hour)); err != nil {
		t.Errorf("a pod that runs is called stuck: %v", err)
	}
}

// A file that is gone is not the specification's fault.
func TestSIFRemedy(t *testing.T) {
	got := newStuckPods(false).remedy("CreateContainerError", "container main: serve mount: open layer: open layer of a SIF file: open /project/x.sif: no such file or directory")
	if !strings.Contains(got, "put the SIF file back") {
		t.Error(got)
	}
}
