package workload

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// signal is a reason why a pod waits, as the API server reports it.
type signal struct {
	reason string
	stage  stage
	// event distinguishes an event of the pod from a reason in its status.
	event bool
	// other is the source of a reason that is in neither.
	other source
	// message distinguishes signals of the same reason.
	message string
	kind    kind
}

type source int

const (
	rejection  source = iota + 1 // the kubelet refuses the pod
	noNode                       // the pod's node does not exist
	creation                     // an event: the controller creates no pod
	suspension                   // of the job
)

// ofPod reports whether the signal is about a pod that may still start.
func (a signal) ofPod() bool { return a.other == 0 || a.other == noNode }

// ofOwner reports whether the signal is about the object that creates pods.
func (a signal) ofOwner() bool { return a.other == creation || a.other == suspension }

// fromKubelet reports whether the signal proves that a kubelet has accepted the pod.
func (a signal) fromKubelet() bool { return a.other == 0 && (a.event || a.stage == stageContainers) }

// object returns the object in the message to the user.
func (a signal) object(owner string) string {
	if a.ofOwner() {
		return strings.ToLower(owner) + " x"
	}
	return "pod a"
}

// signalsOf returns the signals of an owner's pods, and of the owner.
func signalsOf(owner string) []signal {
	all := signals()
	rejected := kind{classRejected, certain, pullTimeout}
	if owner == "Pod" {
		rejected.timeout = noTimeout
	}
	for reason := range rejections {
		all = append(all, signal{reason: reason, other: rejection, kind: rejected, message: "words of " + reason})
	}
	all = append(all, signal{reason: "NodeNotFound", other: noNode, stage: stageVolumes, kind: kind{classNodes, certain, otherTimeout}, message: "there is no node n1"})
	for reason := range creationEvents {
		if owner == "Deployment" || owner != "Pod" && reason == "FailedCreate" {
			all = append(all, signal{reason: reason, other: creation, kind: kind{classCreation, mendable, otherTimeout}, message: "words of " + reason})
		}
	}
	if owner == "Job" {
		all = append(all, signal{reason: "JobSuspended", other: suspension, kind: kind{classGate, reported, otherTimeout}, message: "the job is suspended"})
	}
	slices.SortFunc(all, func(a, b signal) int { return strings.Compare(a.reason+a.message, b.reason+b.message) })
	return all
}

// signals returns one signal for each row of the tables about pods that a kubelet
// may have accepted.
func signals() []signal {
	var all []signal
	for reason, row := range waitingReasons {
		all = append(all, signal{reason: reason, stage: stageContainers, kind: row, message: "words of " + reason})
	}
	for reason, row := range podEvents {
		if row.trouble.class != "" {
			all = append(all, signal{reason: reason, stage: row.stage, event: true, kind: row.trouble, message: "words of " + reason})
		}
	}
	all = append(all,
		signal{reason: "StartError", stage: stageContainers, kind: kind{classProgram, certain, pullTimeout}, message: `exec: "nothere": executable file not found in $PATH`},
		signal{reason: "StartError", stage: stageContainers, kind: kind{classCreate, certain, otherTimeout}, message: "container init was OOM-killed"},
		signal{reason: "Unschedulable", kind: kind{classNodes, certain, nodeTimeout}, message: "no nodes available to schedule pods"},
		signal{reason: "Unschedulable", kind: kind{classTaint, crowded, otherTimeout}, message: taintedMessage},
		signal{reason: "Unschedulable", kind: kind{classCapacity, crowded, idleTimeout}, message: "0/1 nodes are available: 1 Insufficient cpu."},
		signal{reason: "Unschedulable", kind: kind{classNeeds, mendable, idleTimeout}, message: `0/1 nodes are available: persistentvolumeclaim "absent" not found.`},
		signal{reason: "SchedulingGated", kind: kind{classGate, reported, otherTimeout}, message: "Scheduling is blocked due to non-empty scheduling gates"},
		signal{reason: "SchedulerError", kind: kind{classNeeds, certain, otherTimeout}, message: "binding rejected"},
	)
	slices.SortFunc(all, func(a, b signal) int { return strings.Compare(a.reason+a.message, b.reason+b.message) })
	return all
}

// ownedPod returns a pod as its kind of owner creates it, without a status.
func ownedPod(owner string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default", UID: "a"}}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	controller := true
	switch owner {
	case "Pod", "Job":
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	}
	switch owner {
	case "Pod":
	case "Deployment":
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "x-5d8f", UID: "x-5d8f", Controller: &controller}}
	default:
		pod.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Name: "x", UID: "x", Controller: &controller}}
	}
	pod.Status.Phase = corev1.PodPending
	return pod
}

// stuckOwner returns the state for a workload of one such owner.
func stuckOwner(owner string) *stuckPods {
	s := newStuckPods(false)
	if owner != "Pod" {
		object := &unstructured.Unstructured{Object: map[string]any{"kind": owner}}
		object.SetName("x")
		object.SetNamespace("default")
		object.SetUID("x")
		s.expect([]*target{{object: Object{Unstructured: object}}})
	}
	return s
}

// pod returns the state of the pod that carries the signal in its status.
func (a signal) pod(owner string) *corev1.Pod {
	pod := ownedPod(owner)
	if a.stage == stageScheduling {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: a.reason, Message: a.message}}
		return pod
	}
	pod.Spec.NodeName = "n1"
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}}
	status := corev1.ContainerStatus{Name: "main", Image: "i", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: a.reason, Message: a.message}}}
	if a.reason == "StartError" {
		status.State.Waiting.Reason = "CrashLoopBackOff"
		status.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{Reason: a.reason, Message: a.message, ExitCode: 128}
	}
	if a.kind.class == classCrash {
		pod.Status.InitContainerStatuses = []corev1.ContainerStatus{status}
	} else {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{status}
	}
	return pod
}

func (a signal) send(s *stuckPods, owner string, now time.Time) {
	if !a.event {
		s.handlePod(a.pod(owner), now)
		return
	}
	s.handleEvent(a.podEvent(now), now)
}

func (a signal) podEvent(now time.Time) *corev1.Event {
	return &corev1.Event{
		Type: corev1.EventTypeWarning, Reason: a.reason, Message: a.message, LastTimestamp: metav1.NewTime(now.Truncate(time.Second)),
		Source:         corev1.EventSource{Component: "kubelet"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "a", UID: "a"},
	}
}

// creatingPod returns the first state that the kubelet reports of a pod.
func creatingPod(owner string) *corev1.Pod {
	pod := ownedPod(owner)
	pod.Spec.NodeName = "n1"
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}}
	return pod
}

// supersedes reports whether b, received after a, is the reason that the pod does
// not start.
func (b signal) supersedes(a signal) bool {
	switch {
	case b.other == creation:
		return a.ofOwner() // the owner has a pod
	case b.other == suspension:
		return a.other != rejection // the next pod is rejected too
	case b.other == noNode:
		return !a.fromKubelet()
	case b.other == rejection:
		return true
	case !b.event && b.stage == stageScheduling && a.event:
		return false // the scheduler's report is old: the kubelet has the pod
	case b.event && b.stage == stageVolumes && !a.event && a.stage == stageContainers:
		return false // volumes are mounted again and again
	}
	return true
}

var owners = []string{"Pod", "Job", "Deployment", "StatefulSet", "DaemonSet"}

// check checks the state just before the signal's timeout and just after it.
func (a signal) check(t *testing.T, s *stuckPods, owner string, since time.Time) {
	t.Helper()
	object := a.object(owner)
	if a.kind.timeout > 0 {
		if err := s.overdue(since.Add(a.kind.timeout - time.Millisecond)); err != nil {
			t.Errorf("gives up too early: %v", err)
		}
	}
	s.takeReports()
	err := s.overdue(since.Add(a.kind.timeout + time.Millisecond))
	said := strings.Join(s.takeReports(), "\n")
	if a.kind.effect == reported {
		if err != nil || !strings.HasPrefix(said, object+" waits: "+a.reason+": ") {
			t.Errorf("%v, notes %q; want a note of %s", err, said, a.reason)
		}
		return
	}
	var never *NeverStarts
	if !errors.As(err, &never) || never.Reason != a.reason || never.Object != object || never.Remedy == "" || said != "" {
		t.Errorf("%v, notes %q; want an error with %s and a remedy", err, said, a.reason)
	}
}

// scene is a workload that receives signals.
type scene struct {
	s     *stuckPods
	owner string
	// pod is the uid of the pod that has not ended, empty if there is none.
	pod  types.UID
	pods int
	last signal
}

// handle passes a state of the pod on. If there is none, it is the owner's next.
func (c *scene) handle(pod *corev1.Pod, now time.Time) {
	if c.pod == "" {
		c.pods++
		c.pod = types.UID("abc"[c.pods-1 : c.pods])
	}
	pod.UID = c.pod
	c.s.handlePod(pod, now)
}

// send passes a signal on, and returns when it was complete.
func (c *scene) send(a signal, now time.Time) time.Time {
	switch {
	case a.other == rejection:
		pod := ownedPod(c.owner)
		pod.Spec.NodeName = "n1"
		pod.Status.Phase, pod.Status.Reason, pod.Status.Message = corev1.PodFailed, a.reason, "Pod was rejected: "+a.message
		c.handle(pod, now)
		c.pod = ""
	case a.other == noNode:
		if !c.last.fromKubelet() {
			given := ownedPod(c.owner)
			given.Spec.NodeName = "n1"
			if c.pod == "" {
				c.handle(given, now)
				now = now.Add(missingTimeout + time.Millisecond)
			} else if c.last.stage == stageScheduling {
				c.handle(given, now)
			}
		}
		c.s.handleUnknownNodes(nil, now)
	case a.other == creation:
		object := corev1.ObjectReference{Kind: c.owner, Namespace: "default", Name: "x", UID: "x"}
		if c.owner == "Deployment" && a.reason == "FailedCreate" {
			object = corev1.ObjectReference{Kind: "ReplicaSet", Namespace: "default", Name: "x-5d8f", UID: "x-5d8f"}
		}
		c.s.handleEvent(&corev1.Event{Type: corev1.EventTypeWarning, Reason: a.reason, Message: a.message, InvolvedObject: object, LastTimestamp: metav1.NewTime(now)}, now)
		if c.owner == "Job" && c.pods == 0 {
			c.s.watchJob(suspendable(false), now)
		}
	case a.other == suspension:
		if c.pod != "" { // the controller deletes it
			c.s.forget(c.pod, now)
			c.pod = ""
		}
		c.s.watchJob(suspendable(true), now)
	case a.event:
		if c.pod == "" && (c.owner != "Pod" || c.pods == 0) {
			c.handle(creatingPod(c.owner), now)
		}
		event := a.podEvent(now)
		event.InvolvedObject.UID = max(c.pod, "a")
		c.s.handleEvent(event, now)
	default:
		c.handle(a.pod(c.owner), now)
	}
	c.last = a
	return now
}

// suspendable returns the job x, without pods.
func suspendable(suspended bool) *batchv1.Job {
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "default", UID: "x"}, Spec: batchv1.JobSpec{Suspend: &suspended}}
}

// follows reports whether the signal can come after a.
func (b signal) follows(a signal, owner string) bool {
	switch {
	case b.other == 0 && !b.event && b.stage == stageScheduling && (a.fromKubelet() && !a.event || a.other == noNode):
		return false // a pod keeps its node
	case owner == "Pod" && a.other == rejection && !b.event:
		return false // the pod has failed
	}
	return true
}

// decides returns which of a and b, received at these times, is the reason, and
// since when.
func decides(a, b signal, owner string, first, second time.Time) (signal, time.Time) {
	switch {
	case a.other == rejection && owner == "Pod":
		return a, first // the event is about the pod's past
	case a.other == rejection && b.ofPod() && !b.fromKubelet() && first.Add(a.kind.timeout).Before(second.Add(b.kind.timeout)):
		return a, first // no kubelet has accepted the next pod
	case !b.supersedes(a):
		return a, first
	case a.kind.class == b.kind.class && a.object(owner) == b.object(owner) && (a.other == noNode) == (b.other == noNode):
		return b, first // the same reason with another text
	}
	return b, second
}
