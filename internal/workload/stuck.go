package workload

import (
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NeverStarts is the error for a workload that waits for what will not come.
type NeverStarts struct {
	// Object is "pod NAME" or "job NAME".
	Object string
	// Reason is Kubernetes' own word for it, Message its explanation.
	Reason, Message string
	// Remedy says what to change.
	Remedy string
}

func (e *NeverStarts) Error() string {
	return fmt.Sprintf("%s cannot start: %s: %s; %s", e.Object, e.Reason, e.Message, e.Remedy)
}

// Patience for reasons that may pass by themselves, each well below the 30 s
// after which a workload that cannot start should have ended the run.
const (
	noPatience    = 0
	idlePatience  = 5 * time.Second  // nothing runs that could make room
	pullPatience  = 12 * time.Second // the kubelet has tried twice by then
	otherPatience = 20 * time.Second
)

type waiting struct {
	since    time.Time
	patience time.Duration
	err      *NeverStarts
	// tainted: a taint keeps the pod away that it does not tolerate.
	tainted     bool
	tolerations []corev1.Toleration
	// tooLarge: the pod would not fit on an empty node either.
	tooLarge bool
	// needs are what it refers to in its namespace.
	namespace string
	needs     []reference
}

// stuckPods knows since when which pod waits, and why.
type stuckPods struct {
	pods map[types.UID]*waiting
	// jobs are those that have not made all their pods.
	jobs map[types.UID]*waiting
	// working are the pods that have been given a node and have not ended:
	// while there is one, a pod that does not fit may yet get its turn.
	working map[types.UID]bool
	// living are all pods that have not ended, also those that are not followed.
	living map[types.UID]bool
	// others: more may come of objects that are not followed.
	others bool
	// idleSince is when the last of them ended; zero, there was none yet.
	idleSince time.Time
	noPull    bool
}

func newStuckPods(noPull bool) *stuckPods {
	return &stuckPods{pods: map[types.UID]*waiting{}, jobs: map[types.UID]*waiting{}, working: map[types.UID]bool{}, living: map[types.UID]bool{}, noPull: noPull}
}

func (s *stuckPods) groups() []map[types.UID]*waiting {
	return []map[types.UID]*waiting{s.pods, s.jobs}
}

// overdue returns the error of the pod whose patience is over.
func (s *stuckPods) overdue(now time.Time) error {
	for _, group := range s.groups() {
		for _, w := range group {
			if w.err == nil {
				continue
			}
			since := w.since
			if w.err.Reason == corev1.PodReasonUnschedulable && !w.tooLarge {
				if len(s.working) > 0 {
					continue
				}
				if s.idleSince.After(since) {
					since = s.idleSince // the scheduler's turn, with the room that there is now
				}
			}
			if now.Sub(since) >= w.patience {
				return w.err
			}
		}
	}
	return nil
}

// noteLife is for all pods there are.
func (s *stuckPods) noteLife(pod *corev1.Pod) {
	if ended(pod) {
		delete(s.living, pod.UID)
	} else {
		s.living[pod.UID] = true
	}
}

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (s *stuckPods) noteWork(pod *corev1.Pod, now time.Time) {
	if pod.Spec.NodeName != "" && !ended(pod) {
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

// forget is for pods and jobs that have been deleted.
func (s *stuckPods) forget(uid types.UID, now time.Time) {
	delete(s.pods, uid)
	delete(s.jobs, uid)
	delete(s.living, uid)
	s.noteEnd(uid, now)
}

func (s *stuckPods) handlePod(pod *corev1.Pod, now time.Time) {
	s.noteWork(pod, now)
	if pod.Status.Phase != corev1.PodPending || pod.DeletionTimestamp != nil {
		delete(s.pods, pod.UID)
		return
	}
	w := s.pods[pod.UID]
	if w == nil {
		w = &waiting{since: now, namespace: pod.Namespace, needs: references(pod.Spec)}
		s.pods[pod.UID] = w
	}
	if reason, message, patience := whyPending(pod); reason != "" {
		unschedulable := reason == corev1.PodReasonUnschedulable
		tainted := unschedulable && isTainted(message)
		switch {
		case w.err == nil, w.tainted && !tainted:
			w.since = now
		case w.err.Reason == reason:
		case isPull(reason) && isPull(w.err.Reason):
			// The back-off of a pull is the same trouble as its error.
		default:
			w.since = now
		}
		w.tainted, w.tolerations = tainted, pod.Spec.Tolerations
		w.tooLarge = unschedulable && !tainted && isTooLarge(message)
		w.patience = patience
		if isPull(reason) && (s.noPull || podRemedy(message) != "") {
			w.patience = noPatience
		}
		w.err = &NeverStarts{Object: "pod " + pod.Name, Reason: reason, Message: message, Remedy: remedy(reason, message)}
		if isPull(reason) && s.noPull {
			w.err.Remedy = "no archive holds this image under this name: give it as one (--image FILE or --image NAME=FILE), or leave --no-pull away"
		}
	}
}

func whyPending(pod *corev1.Pod) (reason, message string, patience time.Duration) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse && condition.Reason == corev1.PodReasonUnschedulable {
			if isTainted(condition.Message) {
				return condition.Reason, condition.Message, otherPatience
			}
			return condition.Reason, condition.Message, idlePatience
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			state := status.State.Waiting
			if state == nil || state.Reason == "ContainerCreating" || state.Reason == "PodInitializing" {
				continue
			}
			message = fmt.Sprintf("container %s: %s", status.Name, state.Message)
			switch {
			case state.Reason == "ErrImageNeverPull" || state.Reason == "InvalidImageName":
				return state.Reason, message, noPatience
			case isPull(state.Reason):
				return state.Reason, message, pullPatience
			default:
				return state.Reason, message, otherPatience
			}
		}
	}
	return "", "", 0
}

// isTooLarge reads the scheduler's message: it would help with a pod that only
// lacks room to say which other pods could make some. Devices are left out:
// their plugin may come with the workload and add them to the node.
func isTooLarge(message string) bool {
	return strings.Contains(message, "Preemption is not helpful") &&
		(strings.Contains(message, "Insufficient cpu") || strings.Contains(message, "Insufficient memory"))
}

func isPull(reason string) bool { return reason == "ErrImagePull" || reason == "ImagePullBackOff" }

// handleEvent takes in reasons that no status shows: volumes and sandboxes.
func (s *stuckPods) handleEvent(event *corev1.Event) {
	if event.Type != corev1.EventTypeWarning {
		return
	}
	group, object := s.pods, "pod "
	if event.InvolvedObject.Kind == "Job" {
		group, object = s.jobs, "job "
	}
	w := group[event.InvolvedObject.UID]
	if w == nil || w.err != nil && w.err.Reason != event.Reason {
		return
	}
	switch event.Reason {
	case "FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox", "FailedCreate":
		w.patience = otherPatience
		w.err = &NeverStarts{Object: object + event.InvolvedObject.Name, Reason: event.Reason, Message: event.Message, Remedy: remedy(event.Reason, event.Message)}
	}
}

// watchJob keeps an eye on a job until it has a pod.
func (s *stuckPods) watchJob(job *batchv1.Job) {
	if job.Status.Active+job.Status.Succeeded+job.Status.Failed > 0 {
		delete(s.jobs, job.UID)
		return
	}
	if s.jobs[job.UID] == nil {
		s.jobs[job.UID] = &waiting{since: time.Now(), namespace: job.Namespace, needs: references(job.Spec.Template.Spec)}
	}
}

const loginRemedy = "log in to the registry (podman login, docker login)"

// PullRemedy is for errors of pulls that do not pass by themselves; for the
// others it is empty. The words are containerd's and Go's.
func PullRemedy(message string) string {
	for _, known := range []struct{ words, remedy string }{
		{"server gave HTTP response to HTTPS client", "the registry has no TLS: allow that with --registry NAME=http://NAME"},
		{"failed to verify certificate", "name the certificate of the registry's authority: export SSL_CERT_FILE=FILE"},
		{"authorization failed", loginRemedy},
		{"401 Unauthorized", loginRemedy},
	} {
		if strings.Contains(message, known.words) {
			return known.remedy
		}
	}
	return ""
}

// podRemedy is the same for a pod.
func podRemedy(message string) string {
	remedy := PullRemedy(message)
	if remedy == loginRemedy {
		remedy += ", or give the pod imagePullSecrets"
	}
	return remedy
}

// remedy says what the user can change.
func remedy(reason, message string) string {
	switch {
	case reason == corev1.PodReasonUnschedulable && strings.Contains(message, "persistentvolumeclaim") && strings.Contains(message, "not found"):
		return "create the claim"
	case reason == corev1.PodReasonUnschedulable && strings.Contains(message, "Insufficient memory") && strings.Contains(message, "Insufficient cpu"):
		return "ask Slurm for more memory (--mem) and processors (--cpus-per-task), or lower resources.requests"
	case reason == corev1.PodReasonUnschedulable && strings.Contains(message, "Insufficient memory"):
		return "ask Slurm for more memory (--mem), or lower resources.requests.memory"
	case reason == corev1.PodReasonUnschedulable && strings.Contains(message, "Insufficient cpu"):
		return "ask Slurm for more processors (--cpus-per-task), or lower resources.requests.cpu"
	case reason == corev1.PodReasonUnschedulable && strings.Contains(message, "Insufficient"):
		return "ask Slurm for that resource, or remove the request"
	case reason == corev1.PodReasonUnschedulable && isTainted(message):
		return "add a toleration for the node's taint; 'kubectl describe node' shows it"
	case reason == corev1.PodReasonUnschedulable:
		return "change the pod's node selector, affinity, tolerations or claims"
	case isPull(reason) && podRemedy(message) != "":
		return podRemedy(message)
	case isPull(reason) || reason == "ErrImageNeverPull":
		return "give the image as an archive (--image FILE), or check its name and that the registry can be reached"
	case reason == "InvalidImageName":
		return "correct the image's name"
	case reason == "FailedMount" || reason == "FailedAttachVolume":
		return "create the ConfigMap, Secret or claim that the pod mounts, or correct its name"
	case reason == "CreateContainerConfigError":
		return "create the ConfigMap or Secret that the container refers to, or correct its name"
	case strings.Contains(message, "layer of a SIF file"):
		return "put the SIF file back as it was, or start again with the one that is there now"
	case reason == "FailedCreate":
		return "correct the job's pod template"
	default:
		return "correct the pod's specification"
	}
}
