package workload

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// drainPatience bounds the wait for the last lines of ended containers.
const drainPatience = 5 * time.Second

// logs copies the output of containers to the workload's streams, each
// container's once for each time it runs.
type logs struct {
	client  *Client
	streams Streams
	// plain: exactly one container runs at a time, so its bytes pass as they
	// are. Otherwise whole lines carry the container's name.
	plain bool
	pause time.Duration // resumePause
	mu    sync.Mutex    // serialises lines
	// followed holds the streams of a container, by its id.
	followed map[string][]*stream
	// latest holds those of the latest container of a pod and a name.
	latest map[string][]*stream
	group  sync.WaitGroup
}

func newLogs(client *Client, streams Streams, plain bool) *logs {
	return &logs{client: client, streams: streams, plain: plain, pause: resumePause, followed: map[string][]*stream{}, latest: map[string][]*stream{}}
}

// follow starts the streams of each container of the pod that has started and
// is not followed yet, and finishes those of containers that will not go on.
func (l *logs) follow(ctx context.Context, pod *corev1.Pod) {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			started := status.State.Running != nil || status.State.Terminated != nil && !status.State.Terminated.StartedAt.IsZero()
			if !started || status.ContainerID == "" {
				continue
			}
			if l.followed[status.ContainerID] == nil {
				l.begin(ctx, pod, status)
			}
			if status.State.Terminated != nil {
				l.containerEnded(status.ContainerID)
			} else if last := status.LastTerminationState.Terminated; last != nil {
				l.containerEnded(last.ContainerID)
			}
			if ended {
				for _, s := range l.followed[status.ContainerID] {
					s.finish()
				}
			}
		}
	}
}

// begin starts the streams of a container, after those of the one that it was
// started in place of.
func (l *logs) begin(ctx context.Context, pod *corev1.Pod, status corev1.ContainerStatus) {
	name := string(pod.UID) + "/" + status.Name
	before := l.latest[name]
	streams := []*stream{
		newStream(l, pod, status, "Stdout", l.streams.Out),
		newStream(l, pod, status, "Stderr", l.streams.Err),
	}
	for i, s := range streams {
		var predecessor *stream
		if before != nil {
			predecessor = before[i]
			predecessor.replace()
		}
		s.start(ctx, predecessor)
	}
	l.followed[status.ContainerID], l.latest[name] = streams, streams
}

// containerEnded lets the streams of a container end with its log.
func (l *logs) containerEnded(id string) {
	for _, s := range l.followed[id] {
		s.noteContainerEnd()
	}
}

// abandon ends the streams of containers of a deleted pod whose end nobody told
// of: their node is lost, and a request for their log hangs.
func (l *logs) abandon(pod *corev1.Pod) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			if status.State.Terminated != nil {
				continue
			}
			for _, s := range l.followed[status.ContainerID] {
				s.abandon()
			}
		}
	}
}

// wait returns when every stream has ended, or says that one may be cut short.
func (l *logs) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		l.group.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(drainPatience):
		l.streams.Note("the workload has ended, but its log has not: the last lines may be missing")
		return nil
	}
}
