package workload

import (
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// expect registers the objects that controllers create pods for.
func (s *stuckPods) expect(targets []*target) {
	for _, t := range targets {
		if t.pod {
			continue
		}
		kind := strings.ToLower(t.object.GetKind())
		s.owners[t.object.GetUID()] = &waiting{
			name: kind + " " + t.object.GetName(), namespace: t.object.GetNamespace(),
			followed: true, needs: references(t.template),
		}
		if kind == "deployment" {
			s.deployments[types.NamespacedName{Namespace: t.object.GetNamespace(), Name: t.object.GetName()}] = t.object.GetUID()
		}
	}
}

// addAttempt records the pods that ended without having started: their controller
// tries again, for ten minutes or for ever.
func (s *stuckPods) addAttempt(pod *corev1.Pod, now time.Time) {
	key, replicated := pod.UID, false
	if controller := metav1.GetControllerOf(pod); controller != nil {
		key, replicated = controller.UID, controller.Kind != "Job"
	}
	t := s.containerTrouble(pod)
	if hasStarted(pod) && t == nil {
		if s.started[key].IsZero() {
			s.started[key] = now
		}
		delete(s.attempts, key)
	}
	if pod.Status.Phase != corev1.PodFailed || !s.started[key].IsZero() {
		return
	}
	if t == nil || t.class != classProgram {
		if t = s.rejected(pod); t == nil {
			return
		}
	}
	w := s.attempts[key]
	if w == nil {
		w = &waiting{name: "pod " + pod.Name, namespace: pod.Namespace, followed: true, controller: key, replicated: replicated, stage: stageContainers}
		s.attempts[key] = w
	}
	if key == pod.UID {
		t.timeout = noTimeout // there is no other attempt
	}
	w.status = t
	w.settle(now)
}

// hasStarted reports whether a container of the pod has run.
func hasStarted(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, started)
}

// givesUp reports whether a pod or a job that has failed never had a container that
// could start; overdue then returns the reason.
func (s *stuckPods) givesUp(uid types.UID) bool {
	w := s.attempts[uid]
	if w == nil {
		return false
	}
	w.status.timeout = noTimeout
	return true
}

// handleControllerEvent handles an event about a controller that cannot create a
// pod.
func (s *stuckPods) handleControllerEvent(event *corev1.Event, now time.Time) {
	object := event.InvolvedObject
	w := s.owners[s.owner(object.Kind, object.Namespace, object.Name, object.UID)]
	if w == nil || !w.receive(event) {
		return
	}
	switch {
	case creationEvents[event.Reason]:
		effect := mendable
		if strings.Contains(event.Message, "exceeded quota") {
			effect = crowded
		}
		w.event = s.newTrouble(kind{classCreation, effect, otherTimeout}, stageScheduling, w.name, event.Reason, event.Message)
		w.repeated = now
	case event.Reason == "SuccessfulCreate":
		w.event = nil
	}
	w.settle(now)
}

// owner returns the followed object behind a controller: a ReplicaSet has the
// name of its Deployment, a dash, and a hash.
func (s *stuckPods) owner(kind, namespace, name string, uid types.UID) types.UID {
	if kind != "ReplicaSet" || s.owners[uid] != nil {
		return uid
	}
	dash := strings.LastIndexByte(name, '-')
	if dash < 0 {
		return uid
	}
	return s.deployments[types.NamespacedName{Namespace: namespace, Name: name[:dash]}]
}

// watchJob limits the time until a job has a pod. A job may be suspended after it
// had pods.
func (s *stuckPods) watchJob(job *batchv1.Job, now time.Time) {
	suspended := job.Spec.Suspend != nil && *job.Spec.Suspend
	if job.Status.Active > 0 || !suspended && job.Status.Succeeded+job.Status.Failed > 0 {
		delete(s.owners, job.UID)
		return
	}
	w := s.owners[job.UID]
	if w == nil && suspended {
		w = &waiting{name: "job " + job.Name, namespace: job.Namespace, followed: true, needs: references(job.Spec.Template.Spec)}
		s.owners[job.UID] = w
	}
	if w == nil {
		return
	}
	w.status = nil
	if suspended {
		w.status = s.newTrouble(kind{classGate, reported, otherTimeout}, stageScheduling, w.name, "JobSuspended", "the job is suspended")
	}
	w.settle(now)
}
