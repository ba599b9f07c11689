package workload

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// logAttempts and logPause: the kubelet may report a container a moment
	// before it can serve its log.
	logAttempts = 20
	logPause    = 50 * time.Millisecond
	// drainPatience bounds the wait for the last lines of ended containers.
	drainPatience = 5 * time.Second
)

// logs copies the output of containers to the workload's streams, each
// container's once for each time it runs.
type logs struct {
	client  *Client
	streams Streams
	// plain: exactly one container runs at a time, so its bytes pass as they
	// are. Otherwise whole lines carry the container's name.
	plain bool
	mu    sync.Mutex // serialises lines
	seen  map[string]bool
	group sync.WaitGroup
}

func newLogs(client *Client, streams Streams, plain bool) *logs {
	return &logs{client: client, streams: streams, plain: plain, seen: map[string]bool{}}
}

// follow starts a stream for each container of the pod that has started and
// is not followed yet.
func (l *logs) follow(ctx context.Context, pod *corev1.Pod) {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range statuses {
			started := status.State.Running != nil || status.State.Terminated != nil && !status.State.Terminated.StartedAt.IsZero()
			if !started || status.ContainerID == "" || l.seen[status.ContainerID] {
				continue
			}
			l.seen[status.ContainerID] = true
			for stream, writer := range map[string]io.Writer{"Stdout": l.streams.Out, "Stderr": l.streams.Err} {
				l.group.Go(func() {
					l.copyPatiently(ctx, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, status.Name, stream, writer)
				})
			}
		}
	}
}

func (l *logs) copyPatiently(ctx context.Context, pod types.NamespacedName, container, stream string, writer io.Writer) {
	var err error
	for range logAttempts {
		var body io.ReadCloser
		body, err = l.client.rest.Get().
			AbsPath("/api/v1/namespaces", pod.Namespace, "pods", pod.Name, "log").
			Param("container", container).Param("follow", "true").Param("stream", stream).
			Stream(ctx)
		if err == nil {
			l.copy(body, fmt.Sprintf("[%s %s] ", pod.Name, container), writer)
			body.Close()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(logPause):
		}
	}
	l.streams.Note(fmt.Sprintf("the log of container %s of pod %s cannot be read: %v", container, pod.Name, err))
}

func (l *logs) copy(from io.Reader, prefix string, to io.Writer) {
	if l.plain {
		_, _ = io.Copy(to, from)
		return
	}
	reader := bufio.NewReader(from)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			l.mu.Lock()
			_, _ = io.WriteString(to, prefix+line)
			if line[len(line)-1] != '\n' {
				_, _ = io.WriteString(to, "\n")
			}
			l.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// wait returns when every stream has ended.
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
		return errors.New("read the last lines of the workload's log: timed out")
	}
}
