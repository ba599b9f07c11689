package workload

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NeverStarts is the error for a workload that waits for something that will not
// happen.
type NeverStarts struct {
	// Object is "pod NAME" or "job NAME".
	Object string
	// Reason is Kubernetes' reason, and Message its explanation.
	Reason, Message string
	// Remedy describes for the user how to solve the problem.
	Remedy string
}

func (e *NeverStarts) Error() string { return e.Object + " cannot start: " + e.why() }

func (e *NeverStarts) why() string {
	return fmt.Sprintf("%s: %s; %s", e.Reason, e.Message, e.Remedy)
}

func (d diagnosis) neverStarts(object, reason, message string) *NeverStarts {
	message = plain(message)
	return &NeverStarts{Object: object, Reason: reason, Message: message, Remedy: d.remedy(reason, message)}
}

// waiting is the state of an object that has not started: a pod, or an object whose
// controller has created no pod.
//
// A pod's status and its events arrive on two watches, in any order. So waiting keeps
// the troubles from both, and current chooses one by the stage that the pod has
// reached.
type waiting struct {
	name, namespace string
	// stage is the latest stage that the status or an event proves.
	stage stage
	// status and event are the troubles that the pod's status and its events
	// report.
	status, event *trouble
	// received holds the time of the latest event of each component, because a list
	// of events is not sorted.
	received map[string]time.Time
	// since is the time when the current class of trouble began.
	since time.Time
	class class
	// repeated is the time of the latest event about the trouble. Kubernetes
	// repeats an event while the trouble lasts, and nothing else may show that it
	// has passed.
	repeated time.Time
	// followed reports whether the pod belongs to the workload.
	followed    bool
	tolerations []corev1.Toleration
	// needs holds the pod's references to objects in its namespace.
	needs []reference
	// controller created the pod. If replicated is true, other pods of the
	// controller can do its work.
	controller types.UID
	replicated bool
	// seen is the time when the pod was first seen.
	seen time.Time
	// node is the pod's node while the node's kubelet has not answered.
	node string
	// server reports whether the pod runs until somebody deletes it.
	server bool
	// reported reports whether the user has been notified.
	reported bool
}

// current returns the trouble that counts, or nil.
func (w *waiting) current() *trouble {
	status := w.status
	if status != nil && status.stage == stageScheduling && w.stage > stageScheduling {
		status = nil // an event proves that the pod has been scheduled
	}
	if status != nil && status.class == classGate {
		return status // nothing happens before the scheduling gate is removed
	}
	if w.event != nil && (status == nil || w.stage < stageContainers) {
		return w.event
	}
	return status
}

// settle restarts the clock when the class of trouble has changed.
func (w *waiting) settle(now time.Time) {
	var began class
	if t := w.current(); t != nil {
		began = t.class
	}
	if began != w.class {
		w.class, w.since, w.reported = began, now, false
	}
}

// stuckPods tracks the pods and controllers that wait, with the reason and the start of
// each wait.
type stuckPods struct {
	// pods holds all unfinished pods, followed or not.
	pods map[types.UID]*waiting
	// owners holds the followed objects without a pod so far.
	owners map[types.UID]*waiting
	// deployments holds the owners whose pods another object creates, by namespace
	// and name.
	deployments map[types.NamespacedName]types.UID
	// attempts holds pods that ended without having started, by controller, or by
	// their own UID if they have no controller.
	attempts map[types.UID]*waiting
	// started holds the time when a pod of each controller was first seen running.
	started map[types.UID]time.Time
	// working holds the pods that are scheduled and will finish. While there is
	// one, a pod that does not fit may still get its space.
	working map[types.UID]bool
	// others reports whether objects outside the workload may create more pods.
	others bool
	// idleSince is the time when a pod of working last ended. It is zero before.
	idleSince time.Time
	// served is the time when a server pod last began to run.
	served time.Time
	// reports holds messages for the user since the last takeReports.
	reports []string
	diagnosis
}

func newStuckPods(noPull bool) *stuckPods {
	return &stuckPods{
		pods: map[types.UID]*waiting{}, owners: map[types.UID]*waiting{}, deployments: map[types.NamespacedName]types.UID{},
		attempts: map[types.UID]*waiting{}, started: map[types.UID]time.Time{}, working: map[types.UID]bool{}, diagnosis: diagnosis{noPull: noPull},
	}
}

func (s *stuckPods) groups() []map[types.UID]*waiting {
	return []map[types.UID]*waiting{s.pods, s.owners, s.attempts}
}

// overdue returns the error of the object that has waited too long, or nil. Of several, it
// chooses the one that has waited longest. It adds a report for each late object that does
// not end the run, and forgets events whose pods do not appear.
func (s *stuckPods) overdue(now time.Time) *NeverStarts {
	var worst *NeverStarts
	var since time.Time
	for _, group := range s.groups() {
		for uid, w := range group {
			if w.name == "" && now.Sub(w.since) > unseenTimeout {
				delete(group, uid)
			}
			began, late := s.late(w, now)
			if !late {
				continue
			}
			t := w.current()
			if t.effect == reported || s.existing && t.othersMayFix() || w.replicated && s.hasRunningSibling(w) || s.isSuccessor(w) && now.Sub(began) < successorTimeout {
				s.report(w, t)
				continue
			}
			if worst == nil || began.Before(since) || began.Equal(since) && t.err.Object < worst.Object {
				worst, since = t.err, began
			}
		}
	}
	return worst
}

// late reports whether an object has waited too long. It also returns the start of
// the wait.
func (s *stuckPods) late(w *waiting, now time.Time) (time.Time, bool) {
	t := w.current()
	if t == nil || !w.followed {
		return now, false
	}
	since, timeout := w.since, t.timeout
	switch {
	case t.class == classRejected && s.hasAcceptedSibling(w):
		return now, false
	case t.effect == crowded && !t.tooLarge:
		if len(s.working) > 0 {
			return now, false
		}
		if s.idleSince.After(since) {
			since = s.idleSince // the present space has been free since then
		}
		if s.serverLives() {
			timeout = max(timeout, otherTimeout) // it may end other pods
		}
	case t.effect == mendable && timeout != noTimeout:
		if s.serverStarts(now) {
			return now, false
		}
		if s.served.After(since) {
			since = s.served
		}
		if t.needsPod && s.nothingLives() {
			timeout = min(timeout, idleTimeout)
		}
	}
	if t == w.event && says(t.err.Message, passingWords) && w.repeated.Sub(w.since) < timeout/2 {
		timeout = unrepeatedTimeout
	}
	return since, now.Sub(since) >= timeout
}

// report adds one message per object with the reason why it waits.
func (s *stuckPods) report(w *waiting, t *trouble) {
	if !w.reported {
		w.reported = true
		s.reports = append(s.reports, t.err.Object+" waits: "+t.err.why())
	}
}

func (s *stuckPods) takeReports() []string {
	reports := s.reports
	s.reports = nil
	return reports
}

// anyPod reports whether a condition holds for one of the pods.
func (s *stuckPods) anyPod(holds func(*waiting) bool) bool {
	for _, w := range s.pods {
		if holds(w) {
			return true
		}
	}
	return false
}

// hasRunningSibling reports whether another pod of the same controller runs.
func (s *stuckPods) hasRunningSibling(w *waiting) bool {
	return s.anyPod(func(other *waiting) bool {
		return other != w && other.controller == w.controller && other.stage == stageRunning && other.current() == nil
	})
}

// hasAcceptedSibling reports whether a kubelet has accepted another pod of the same
// controller, on another node perhaps.
func (s *stuckPods) hasAcceptedSibling(w *waiting) bool {
	return s.anyPod(func(other *waiting) bool { return other.controller == w.controller && other.accepted() })
}

// accepted reports whether a kubelet has accepted the pod.
func (w *waiting) accepted() bool {
	return w.event != nil || w.stage > stageVolumes || w.stage == stageVolumes && w.node == ""
}

// nothingLives reports whether no pod is left or expected that could create a
// missing object.
func (s *stuckPods) nothingLives() bool {
	return !s.others && !s.anyPod(func(w *waiting) bool { return w.name != "" && w.current() == nil })
}

// isSuccessor reports whether a pod of the same controller ran long before this one
// was created. What worked then may work again.
func (s *stuckPods) isSuccessor(w *waiting) bool {
	began, ok := s.started[w.controller]
	return ok && w.seen.Sub(began) > successorAge
}

// serverLives reports whether there is a server pod without trouble.
func (s *stuckPods) serverLives() bool {
	return s.anyPod(func(w *waiting) bool { return w.server && w.current() == nil })
}

// serverStarts reports whether a server pod, which may solve the trouble of others,
// is starting.
func (s *stuckPods) serverStarts(now time.Time) bool {
	return s.anyPod(func(w *waiting) bool {
		return w.server && w.stage != stageRunning && w.current() == nil && now.Sub(w.since) < serverTimeout
	})
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// updateWork updates working. A server pod counts only while it is being deleted,
// because otherwise it never frees its space.
func (s *stuckPods) updateWork(pod *corev1.Pod, now time.Time) {
	ends := pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || pod.DeletionTimestamp != nil
	if pod.Spec.NodeName != "" && !ended(pod) && ends {
		s.working[pod.UID] = true
		return
	}
	s.endWork(pod.UID, now)
}

func (s *stuckPods) endWork(uid types.UID, now time.Time) {
	if s.working[uid] {
		delete(s.working, uid)
		s.idleSince = now
	}
}

// forget removes a deleted pod or controller.
func (s *stuckPods) forget(uid types.UID, now time.Time) {
	delete(s.pods, uid)
	delete(s.owners, uid)
	delete(s.attempts, uid)
	s.endWork(uid, now)
}

// handlePod records the state of a pod of the workload.
func (s *stuckPods) handlePod(pod *corev1.Pod, now time.Time) {
	s.updatePod(pod, now)
	if w := s.pods[pod.UID]; w != nil {
		w.followed = true
	}
	if controller := metav1.GetControllerOf(pod); controller != nil && pod.DeletionTimestamp == nil {
		delete(s.owners, s.owner(controller.Kind, pod.Namespace, controller.Name, controller.UID))
	}
	s.addAttempt(pod, now)
}

// updatePod records the state of any pod.
func (s *stuckPods) updatePod(pod *corev1.Pod, now time.Time) {
	s.updateWork(pod, now)
	if ended(pod) || pod.DeletionTimestamp != nil {
		delete(s.pods, pod.UID)
		return
	}
	w := s.pods[pod.UID]
	if w == nil {
		w = &waiting{since: now}
		s.pods[pod.UID] = w
	}
	if w.name == "" {
		w.name, w.namespace, w.needs, w.tolerations = "pod "+pod.Name, pod.Namespace, references(pod.Spec), pod.Spec.Tolerations
		w.seen = now
		w.server = pod.Spec.RestartPolicy == corev1.RestartPolicyAlways
		if controller := metav1.GetControllerOf(pod); controller != nil {
			w.controller, w.replicated = controller.UID, controller.Kind != "Job"
		}
	}
	w.node = ""
	if pod.Status.StartTime.IsZero() {
		w.node = pod.Spec.NodeName
	}
	reached := stageOf(pod)
	switch {
	case reached == stageRunning && w.stage != stageRunning && w.server:
		s.served = now
	case reached < w.stage:
		reached = w.stage // an event was faster than the status
	}
	w.stage, w.status = reached, s.troubleOf(pod)
	if w.event != nil && w.stage > w.event.stage {
		w.event = nil
	}
	w.settle(now)
}

// handleEvent records an event: troubles with volumes, sandboxes and controllers are in
// no status. It also records progress.
func (s *stuckPods) handleEvent(event *corev1.Event, now time.Time) {
	object := event.InvolvedObject
	if object.Kind != "Pod" {
		s.handleControllerEvent(event, now)
		return
	}
	row, ok := findPodEvent(event)
	if !ok {
		return
	}
	w := s.pods[object.UID]
	if w == nil {
		w = &waiting{since: now} // the pod has not been seen yet
		s.pods[object.UID] = w
	}
	if !w.receive(event) || row.stage < stageSandbox && w.stage >= stageContainers {
		return // the kubelet mounts the volumes of a running pod again and again
	}
	if w.stage != stageRunning {
		w.stage = row.stage
		w.event = nil
		if row.trouble.class != "" {
			w.event = s.newTrouble(row.trouble, row.stage, "pod "+object.Name, event.Reason, event.Message)
			w.repeated = now
		}
	}
	w.settle(now)
}

// receive records an event, and reports whether it is no older than the latest
// event of its component.
func (w *waiting) receive(event *corev1.Event) bool {
	happened := event.LastTimestamp.Time
	if happened.Before(w.received[event.Source.Component]) {
		return false
	}
	if w.received == nil {
		w.received = map[string]time.Time{}
	}
	w.received[event.Source.Component] = happened
	return true
}
