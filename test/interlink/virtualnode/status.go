package virtualnode

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Status is an element of the reply to /status.
type Status struct {
	Name           string                   `json:"name"`
	UID            string                   `json:"UID"`
	Namespace      string                   `json:"namespace"`
	JobID          string                   `json:"JID"`
	Containers     []corev1.ContainerStatus `json:"containers"`
	InitContainers []corev1.ContainerStatus `json:"initContainers"`
}

// JobID is the key of the annotation for the JobID that /create returns.
const JobID = "JobID"

// Begin sets the status that the virtual node gives a new pod.
func Begin(pod *corev1.Pod) {
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "Remote pod submitted"}},
		})
	}
}

// Update sets the status of a pod from a reply, unless its phase is final. It returns an
// error for the status of another pod, and for a reply that would crash the virtual node.
func Update(pod *corev1.Pod, reply Status) error {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	if reply.Name != pod.Name || reply.Namespace != pod.Namespace || reply.UID != string(pod.UID) {
		return fmt.Errorf("the status is of another pod: %s/%s %s", reply.Namespace, reply.Name, reply.UID)
	}
	status := &pod.Status
	var initWaits, initRuns, initFailed, failed, running bool
	var initReason, reason string
	initEnded, ended := 0, 0
	for _, remote := range reply.InitContainers {
		put(&status.InitContainerStatuses, remote)
		switch state := remote.State; {
		case state.Terminated != nil:
			initEnded++
			if code := state.Terminated.ExitCode; code != 0 {
				initFailed, initReason = true, fmt.Sprintf("Error: %d", code)
			}
		case state.Waiting != nil:
			initWaits = true
		case state.Running != nil:
			initRuns = true
		}
	}
	if initEnded == len(reply.InitContainers) {
		initWaits = false
	}
	for _, remote := range reply.Containers {
		own := put(&status.ContainerStatuses, remote)
		if initWaits || initRuns {
			own.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
			continue
		}
		switch state := remote.State; {
		case state.Terminated != nil:
			ended++
			if code := state.Terminated.ExitCode; code != 0 {
				failed, reason = true, fmt.Sprintf("Error: %d", code)
			}
		case state.Waiting != nil:
		case state.Running != nil:
			running = true
		}
	}
	switch {
	case ended == len(reply.Containers) && (failed || initFailed):
		status.Phase, status.Reason = corev1.PodFailed, reason
		if !failed {
			status.Reason = initReason
		}
		for i := range status.ContainerStatuses {
			if status.ContainerStatuses[i].State.Terminated == nil {
				return fmt.Errorf("container %s of a failed pod has not terminated, which crashes the virtual node", status.ContainerStatuses[i].Name)
			}
		}
	case ended == len(reply.Containers):
		status.Phase, status.Reason = corev1.PodSucceeded, "Completed"
	case running:
		status.Phase, status.Reason = corev1.PodRunning, "Running"
	case initRuns || initWaits:
		status.Phase, status.Reason = corev1.PodPending, "Init"
	}
	return nil
}

// put replaces the status of a container in a list, or adds it, and returns a pointer to it.
func put(all *[]corev1.ContainerStatus, status corev1.ContainerStatus) *corev1.ContainerStatus {
	at := slices.IndexFunc(*all, func(s corev1.ContainerStatus) bool { return s.Name == status.Name })
	if at < 0 {
		*all = append(*all, status)
		at = len(*all) - 1
	} else {
		(*all)[at] = status
	}
	return &(*all)[at]
}
