package interlink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// killed is the exit code of a container that ended with its cluster, or that its node
// ended: 128 + SIGKILL.
const killed = 137

// status returns the status of a foreign pod. cluster is nil if there is none now. It returns nil if the pod was not created
// yet, or if its cluster cannot be reached now. interLink then keeps the last status.
func (s *Server) status(ctx context.Context, cluster *connected, foreign *corev1.Pod) (*podStatus, error) {
	id := ownJobID(foreign)
	if cluster != nil {
		pod, err := cluster.watched(ctx, foreign)
		if err == nil {
			if isGated(pod) && time.Since(pod.CreationTimestamp.Time) > gatedLimit {
				return lost(foreign, cluster.jobID(pod.Namespace, pod.Name), errGated.Error()), nil
			}
			return report(foreign, pod, cluster.jobID(pod.Namespace, pod.Name), s.restrictions(cluster)), nil
		}
		if errors.As(err, new(*refusal)) { // other pods still have a status
			return lost(foreign, id, err.Error()), nil
		}
		if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	if id == "" {
		return nil, nil
	}
	reason := s.connection.gone(ctx, cluster, id)
	if reason == "" {
		return nil, nil
	}
	return lost(foreign, id, reason), nil
}

// report returns the status of a foreign pod from that of its local pod. The virtual node
// derives the phase only from the states of the containers: a pod without statuses has
// succeeded for it, and a pod has ended if all its containers have terminated. So report
// gives each container a state that fits the local phase. The message of each waiting
// container ends with restrictions.
func report(foreign, pod *corev1.Pod, id, restrictions string) *podStatus {
	r := &podStatus{
		Name: foreign.Name, UID: string(foreign.UID), Namespace: foreign.Namespace, JobID: id,
		Containers: []corev1.ContainerStatus{}, InitContainers: []corev1.ContainerStatus{},
	}
	for _, container := range pod.Spec.InitContainers {
		// While an init container runs, the virtual node shows all other containers as
		// waiting, so the status omits sidecars.
		if container.RestartPolicy == nil || *container.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			r.InitContainers = append(r.InitContainers, containerStatus(pod, container, pod.Status.InitContainerStatuses, true, restrictions))
		}
	}
	for _, container := range pod.Spec.Containers {
		r.Containers = append(r.Containers, containerStatus(pod, container, pod.Status.ContainerStatuses, false, restrictions))
	}
	if pod.Status.Phase == corev1.PodFailed {
		r.fail(pod)
	}
	return r
}

// hasEnded reports whether the phase of a pod is final.
func hasEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// containerStatus returns the status of one container for the virtual node. statuses holds
// the local ones.
func containerStatus(pod *corev1.Pod, container corev1.Container, statuses []corev1.ContainerStatus, init bool, restrictions string) corev1.ContainerStatus {
	status := statusOf(container, statuses)
	ended := status.State.Terminated
	switch {
	case hasEnded(pod) && ended == nil:
		status.Ready = false
		status.State = corev1.ContainerState{Terminated: neverStarted(pod)}
	case ended != nil && !hasEnded(pod) && restarts(pod, container, ended.ExitCode, init):
		// The kubelet is about to start it again.
		status.LastTerminationState = status.State
		status.State = waiting("Restarting", fmt.Sprintf("the last exit code was %d", ended.ExitCode))
	case ended != nil:
		// The virtual node replaces the reason, but keeps the message.
		if r := ended.Reason; r != "" && r != "Completed" && r != "Error" {
			ended.Message = joined(r, ended.Message)
		}
	case status.State.Running == nil:
		reason, message := "ContainerCreating", ""
		if w := status.State.Waiting; w != nil {
			reason, message = cmp.Or(w.Reason, reason), w.Message
		} else if scheduled := condition(pod, corev1.PodScheduled); scheduled == nil || scheduled.Status != corev1.ConditionTrue {
			reason = "Pending"
			if scheduled != nil {
				reason, message = cmp.Or(scheduled.Reason, reason), scheduled.Message
			}
		}
		status.State = waiting(reason, joined(message, restrictions))
	}
	return status
}

// statusOf returns a copy of the status of a container in statuses. If there is none, it returns
// a status without a state.
func statusOf(container corev1.Container, statuses []corev1.ContainerStatus) corev1.ContainerStatus {
	i := slices.IndexFunc(statuses, func(s corev1.ContainerStatus) bool { return s.Name == container.Name })
	if i < 0 {
		return corev1.ContainerStatus{Name: container.Name, Image: container.Image}
	}
	return *statuses[i].DeepCopy()
}

func waiting(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// restarts reports whether the kubelet starts a container again that exited with code.
func restarts(pod *corev1.Pod, container corev1.Container, code int32, init bool) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	policy := pod.Spec.RestartPolicy
	if container.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*container.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return !init || code != 0
}

// neverStarted returns the state of a container that did not start before its pod ended.
// Its exit code is that of the failed init container, or else killed, or 0 in a pod that
// succeeded.
func neverStarted(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	state := &corev1.ContainerStateTerminated{ExitCode: killed, Reason: "NeverStarted", Message: podReason(pod), FinishedAt: metav1.Now()}
	if pod.Status.Phase == corev1.PodSucceeded {
		state.ExitCode = 0
	}
	for _, status := range pod.Status.InitContainerStatuses {
		if ended := status.State.Terminated; ended != nil && ended.ExitCode != 0 {
			state.ExitCode = ended.ExitCode
			state.FinishedAt = ended.FinishedAt
			state.Message = joined(fmt.Sprintf("never started: init container %s failed with exit code %d", status.Name, ended.ExitCode), state.Message)
		}
	}
	return state
}

// podReason returns the reason and message of a pod's status, such as for an eviction.
func podReason(pod *corev1.Pod) string { return joined(pod.Status.Reason, pod.Status.Message) }

// joined returns both texts with a colon between them, or the non-empty one.
func joined(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + ": " + second
}

// fail changes the status so that the virtual node regards the pod as failed. All
// containers of a pod that was evicted, or whose deadline passed, may have exited with 0.
func (r *podStatus) fail(pod *corev1.Pod) {
	failed := func(status corev1.ContainerStatus) bool {
		return status.State.Terminated != nil && status.State.Terminated.ExitCode != 0
	}
	reason := podReason(pod)
	for i := range r.Containers {
		if ended := r.Containers[i].State.Terminated; ended != nil && reason != "" && ended.Message == "" {
			ended.Message = reason
		}
	}
	if slices.ContainsFunc(r.Containers, failed) || slices.ContainsFunc(r.InitContainers, failed) || len(r.Containers) == 0 {
		return
	}
	ended := r.Containers[0].State.Terminated
	ended.Message = joined(fmt.Sprintf("the pod failed, although the container exited with %d", ended.ExitCode), reason)
	ended.ExitCode = killed
}

// lost returns the status of a foreign pod whose local pod no longer exists. Containers
// that had terminated keep their states, and reason is the message of all others.
func lost(foreign *corev1.Pod, id, reason string) *podStatus {
	now := metav1.Now()
	end := func(containers []corev1.Container, statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
		all := []corev1.ContainerStatus{}
		for _, container := range containers {
			status := statusOf(container, statuses)
			if status.State.Terminated == nil {
				state := &corev1.ContainerStateTerminated{ExitCode: killed, Reason: "BerthClusterEnded", Message: reason, FinishedAt: now}
				if running := status.State.Running; running != nil {
					state.StartedAt = running.StartedAt
				}
				status.Ready = false
				status.State = corev1.ContainerState{Terminated: state}
			}
			all = append(all, status)
		}
		return all
	}
	return &podStatus{
		Name: foreign.Name, UID: string(foreign.UID), Namespace: foreign.Namespace, JobID: id,
		Containers:     end(foreign.Spec.Containers, foreign.Status.ContainerStatuses),
		InitContainers: end(foreign.Spec.InitContainers, foreign.Status.InitContainerStatuses),
	}
}
