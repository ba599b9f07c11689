package partitions

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/slurmjobs/kinds"
)

// podStatus returns the status of the pod that shows a job.
func podStatus(status kinds.Status) corev1.PodStatus {
	container := corev1.ContainerStatus{Name: JobContainer, Image: JobImage, RestartCount: int32(status.Restarts)}
	pod := corev1.PodStatus{Phase: kinds.Phase(status.State)}
	switch {
	case kinds.Ended(status.State):
		container.State.Terminated = terminated(status)
		pod.StartTime = ptr.To(container.State.Terminated.StartedAt)
		if pod.Phase == corev1.PodFailed {
			pod.Reason, pod.Message = container.State.Terminated.Reason, status.Message
		}
	case pod.Phase == corev1.PodRunning:
		container.State.Running = &corev1.ContainerStateRunning{StartedAt: timeOf(status.Started)}
		container.Ready, container.Started = true, ptr.To(true)
		pod.StartTime = ptr.To(timeOf(status.Started))
	default:
		container.State.Waiting = waiting(status)
	}
	if pod.StartTime.IsZero() {
		pod.StartTime = nil
	}
	pod.ContainerStatuses = []corev1.ContainerStatus{container}
	isReady := corev1.ConditionFalse
	if container.Ready {
		isReady = corev1.ConditionTrue
	}
	now := metav1.Now()
	for kind, value := range map[corev1.PodConditionType]corev1.ConditionStatus{
		corev1.PodScheduled: corev1.ConditionTrue, corev1.PodInitialized: corev1.ConditionTrue, corev1.ContainersReady: isReady, corev1.PodReady: isReady,
	} {
		pod.Conditions = append(pod.Conditions, corev1.PodCondition{Type: kind, Status: value, LastTransitionTime: now})
	}
	return pod
}

// waiting returns the state of a container whose job has not started. kubectl shows its reason.
func waiting(status kinds.Status) *corev1.ContainerStateWaiting {
	text := "job " + status.JobID + " waits"
	if status.Reason != "" {
		text += ": " + status.Reason
	}
	if status.ExpectedStart != "" {
		text += "; Slurm expects to start it at " + status.ExpectedStart
	}
	// A reason such as "ReqNodeNotAvail, UnavailableNodes:n1" goes on.
	end := strings.IndexFunc(status.Reason, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') })
	reason := status.Reason
	if end >= 0 {
		reason = reason[:end]
	}
	if reason == "" {
		reason = "SlurmPending"
	}
	return &corev1.ContainerStateWaiting{Reason: reason, Message: text}
}

// terminated returns the state of a container whose job has ended. A job that failed never has the
// exit code 0: Slurm may have ended a script that exits with 0 at SIGTERM.
func terminated(status kinds.Status) *corev1.ContainerStateTerminated {
	state := &corev1.ContainerStateTerminated{
		Reason: status.State, Message: status.Message, Signal: int32(status.Signal),
		StartedAt: timeOf(status.Started), FinishedAt: timeOf(status.Ended),
	}
	if status.ExitCode != nil {
		state.ExitCode = int32(*status.ExitCode)
	}
	switch {
	case status.State == "COMPLETED":
		state.Reason = "Completed"
	case state.ExitCode == 0 && status.Signal > 0:
		state.ExitCode = 128 + state.Signal
	case state.ExitCode == 0:
		state.ExitCode = 1
	}
	if status.State == "FAILED" {
		state.Reason = "Error"
	}
	return state
}

// timeOf parses a time of an object's status. An unknown time is zero.
func timeOf(text string) metav1.Time {
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return metav1.Time{}
	}
	return metav1.NewTime(parsed)
}

// sameJob reports whether the status of a pod needs no update. Times of conditions do not count.
func sameJob(now, want corev1.PodStatus) bool {
	return now.Phase == want.Phase && equality.Semantic.DeepEqual(now.ContainerStatuses, want.ContainerStatuses) && isReady(now) == isReady(want)
}

func isReady(status corev1.PodStatus) bool {
	return slices.ContainsFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue })
}

// ended reports whether a pod has ended.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
