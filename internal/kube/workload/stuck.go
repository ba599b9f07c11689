package workload

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NeverStarts is the error for a workload that waits for what will not come.
type NeverStarts struct {
	// Object is "pod NAME" or "job NAME".
	Object string
	// Reason is Kubernetes' own word for it, Message its explanation.
	Reason, Message string
	// Remedy describes the change that cures the problem.
	Remedy string
}

func (e *NeverStarts) Error() string { return e.Object + " cannot start: " + e.why() }

func (e *NeverStarts) why() string {
	return fmt.Sprintf("%s: %s; %s", e.Reason, e.Message, e.Remedy)
}

func (s *stuckPods) neverStarts(object, reason, message string) *NeverStarts {
	message = plain(message)
	return &NeverStarts{Object: object, Reason: reason, Message: message, Remedy: s.remedy(reason, message)}
}

// waiting is the state of an object that has not started: a pod, or an object
// whose controller has created no pod.
//
// A pod's status and its events arrive on two watches, in any order. So their
// troubles are kept apart, and current decides between them by the stage that
// the pod has reached.
type waiting struct {
	name, namespace string
	// stage is the latest one that the status or an event proves.
	stage stage
	// status and event are the troubles that each of them tells of.
	status, event *trouble
	// received is when the latest event of each component happened: a list of events
	// is in no order.
	received map[string]time.Time
	// since is when the trouble began, by its class.
	since time.Time
	class class
	// repeated is the time of the latest event of trouble: one that has passed is
	// not repeated, and nothing else may show that it has passed.
	repeated time.Time
	// followed: the pod belongs to the workload.
	followed    bool
	tolerations []corev1.Toleration
	// needs holds its references to objects in its namespace.
	needs []reference
	// controller created the pod. Where it is replicated, other pods like this one
	// can do its work.
	controller types.UID
	replicated bool
	// seen is when the pod was seen first.
	seen time.Time
	// node is the one that the pod was given to and whose kubelet has not answered.
	node string
	// server: the pod does not end by itself.
	server bool
	// reported: the user knows.
	reported bool
}

// current returns the trouble that counts, nil if there is none.
func (w *waiting) current() *trouble {
	status := w.status
	if status != nil && status.stage == stageScheduling && w.stage > stageScheduling {
		status = nil // an event proves that the pod has got a node
	}
	if w.event != nil && (status == nil || w.stage < stageContainers) {
		return w.event
	}
	return status
}

// settle starts the clock when another class of trouble began.
func (w *waiting) settle(now time.Time) {
	var began class
	if t := w.current(); t != nil {
		began = t.class
	}
	if began != w.class {
		w.class, w.since, w.reported = began, now, false
	}
}

// stuckPods knows since when which pod waits, and why.
type stuckPods struct {
	// pods holds all pods that have not ended, followed or not.
	pods map[types.UID]*waiting
	// owners are the followed objects that have had no pod yet.
	owners map[types.UID]*waiting
	// deployments are the owners among them whose pods another object creates,
	// by namespace and name.
	deployments map[types.NamespacedName]types.UID
	// attempts are the pods that ended without having started, by their
	// controller or, where they have none, by themselves.
	attempts map[types.UID]*waiting
	// started is when a pod of each controller was first seen to have started.
	started map[types.UID]time.Time
	// working are the pods that have a node and will end: while there is one, a
	// pod that does not fit may yet get its turn.
	working map[types.UID]bool
	// others: more may come of objects that are not followed.
	others bool
	// idleSince is when the last of working ended; zero, there was none yet.
	idleSince time.Time
	// served is when a pod that does not end by itself last began to run.
	served time.Time
	// notes are for the user, not yet passed on.
	notes  []string
	noPull bool
	// ids are the user and group ids of a node, such as "0 to 65536"; empty if
	// that is unknown.
	ids string
}

func newStuckPods(noPull bool) *stuckPods {
	return &stuckPods{
		pods: map[types.UID]*waiting{}, owners: map[types.UID]*waiting{}, deployments: map[types.NamespacedName]types.UID{},
		attempts: map[types.UID]*waiting{}, started: map[types.UID]time.Time{}, working: map[types.UID]bool{}, noPull: noPull,
	}
}

func (s *stuckPods) groups() []map[types.UID]*waiting {
	return []map[types.UID]*waiting{s.pods, s.owners, s.attempts}
}

// overdue returns the error of the object whose patience is over, the one that
// has waited longest if there are several.
func (s *stuckPods) overdue(now time.Time) error {
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
			if t.effect == reported || w.replicated && s.hasRunningSibling(w) || s.isSuccessor(w) && now.Sub(began) < successorTimeout {
				s.tell(w, t)
				continue
			}
			if worst == nil || began.Before(since) || began.Equal(since) && t.err.Object < worst.Object {
				worst, since = t.err, began
			}
		}
	}
	if worst == nil {
		return nil
	}
	return worst
}

// late reports whether the patience with an object is over, and since when its
// clock runs.
func (s *stuckPods) late(w *waiting, now time.Time) (time.Time, bool) {
	t := w.current()
	if t == nil || !w.followed {
		return now, false
	}
	since, timeout := w.since, t.timeout
	switch {
	case t.effect == crowded && !t.tooLarge:
		if len(s.working) > 0 {
			return now, false
		}
		if s.idleSince.After(since) {
			since = s.idleSince // the scheduler's turn, with the room that there is now
		}
		if s.serverLives() {
			timeout = max(timeout, otherTimeout) // it may end others
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

// tell notes once why an object waits.
func (s *stuckPods) tell(w *waiting, t *trouble) {
	if !w.reported {
		w.reported = true
		s.notes = append(s.notes, t.err.Object+" waits: "+t.err.why())
	}
}

// takeNotes returns the notes since the last call.
func (s *stuckPods) takeNotes() []string {
	notes := s.notes
	s.notes = nil
	return notes
}

// hasRunningSibling reports whether another pod of the same controller runs.
func (s *stuckPods) hasRunningSibling(w *waiting) bool {
	for _, other := range s.pods {
		if other != w && other.controller == w.controller && other.stage == stageRunning && other.current() == nil {
			return true
		}
	}
	return false
}

// nothingLives reports whether no pod is left, or to be expected, that could
// create what others wait for.
func (s *stuckPods) nothingLives() bool {
	for _, w := range s.pods {
		if w.name != "" && w.current() == nil {
			return false
		}
	}
	return !s.others
}

// isSuccessor reports whether a pod of the same controller has run long before
// this one was made: what worked then may work again.
func (s *stuckPods) isSuccessor(w *waiting) bool {
	began, ok := s.started[w.controller]
	return ok && w.seen.Sub(began) > successorAge
}

// serverLives reports whether a pod that does not end by itself is there.
func (s *stuckPods) serverLives() bool {
	for _, w := range s.pods {
		if w.server && w.current() == nil {
			return true
		}
	}
	return false
}

// serverStarts reports whether a pod that may mend others is on its way.
func (s *stuckPods) serverStarts(now time.Time) bool {
	for _, w := range s.pods {
		if w.server && w.stage != stageRunning && w.current() == nil && now.Sub(w.since) < serverTimeout {
			return true
		}
	}
	return false
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// noteWork keeps working: servers make no room unless they are being deleted.
func (s *stuckPods) noteWork(pod *corev1.Pod, now time.Time) {
	ends := pod.Spec.RestartPolicy != corev1.RestartPolicyAlways || pod.DeletionTimestamp != nil
	if pod.Spec.NodeName != "" && !ended(pod) && ends {
		s.working[pod.UID] = true
		return
	}
	s.noteEnd(pod.UID, now)
}

func (s *stuckPods) noteEnd(uid types.UID, now time.Time) {
	if s.working[uid] {
		delete(s.working, uid)
		s.idleSince = now
	}
}

// forget is for pods and their controllers that have been deleted.
func (s *stuckPods) forget(uid types.UID, now time.Time) {
	delete(s.pods, uid)
	delete(s.owners, uid)
	delete(s.attempts, uid)
	s.noteEnd(uid, now)
}

// handlePod takes in the state of a pod of the workload.
func (s *stuckPods) handlePod(pod *corev1.Pod, now time.Time) {
	s.notePod(pod, now)
	if w := s.pods[pod.UID]; w != nil {
		w.followed = true
	}
	if controller := metav1.GetControllerOf(pod); controller != nil {
		delete(s.owners, s.owner(controller.Kind, pod.Namespace, controller.Name, controller.UID))
	}
	s.noteAttempt(pod, now)
}

// notePod takes in the state of any pod.
func (s *stuckPods) notePod(pod *corev1.Pod, now time.Time) {
	s.noteWork(pod, now)
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
		reached = w.stage // an event knew of it first
	}
	w.stage, w.status = reached, s.troubleOf(pod)
	if w.event != nil && w.stage > w.event.stage {
		w.event = nil
	}
	w.settle(now)
}

// handleEvent takes in what no status says: troubles with volumes and sandboxes,
// and of controllers.
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
		w = &waiting{since: now} // its pod is yet to be seen
		s.pods[object.UID] = w
	}
	if !w.receive(event) || row.stage < stageSandbox && w.stage >= stageContainers {
		return // the volumes of pods that run are mounted again and again
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

// receive reports whether an event is no older than the latest one.
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
