package workload

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// logAttempts and logPause: the kubelet may report a container a moment
	// before it can serve its log.
	logAttempts = 20
	logPause    = 50 * time.Millisecond
	// drainPatience bounds the wait for the last lines of ended containers.
	drainPatience = 5 * time.Second
	// rereadLimit is the size up to which an ended container's log is read
	// again from the start rather than awaited, see stream.finish. It is well
	// below the size at which the kubelet rotates a log.
	rereadLimit = 1 << 20
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
	// followed holds the streams of a container, by its id.
	followed map[string][]*stream
	group    sync.WaitGroup
}

func newLogs(client *Client, streams Streams, plain bool) *logs {
	return &logs{client: client, streams: streams, plain: plain, followed: map[string][]*stream{}}
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
				l.followed[status.ContainerID] = []*stream{
					l.newStream(ctx, pod, status.Name, "Stdout", l.streams.Out),
					l.newStream(ctx, pod, status.Name, "Stderr", l.streams.Err),
				}
			}
			if ended {
				for _, s := range l.followed[status.ContainerID] {
					s.finish()
				}
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

// stream copies one output stream of one container.
type stream struct {
	logs                      *logs
	namespace, pod, container string
	name                      string // "Stdout" or "Stderr"
	to                        io.Writer
	mu                        sync.Mutex
	copied                    int64
	partial                   []byte // of a line, where lines are kept whole
	ended                     bool
	cancel                    context.CancelFunc
}

func (l *logs) newStream(ctx context.Context, pod *corev1.Pod, container, name string, to io.Writer) *stream {
	following, cancel := context.WithCancel(ctx)
	s := &stream{
		logs: l, namespace: pod.Namespace, pod: pod.Name, container: container,
		name: name, to: to, cancel: cancel,
	}
	l.group.Go(func() {
		defer cancel()
		s.run(ctx, following)
	})
	return s
}

// finish makes the stream end now that its container has. Followed to its end,
// a log ends up to a second after its container, which is how often the
// kubelet looks; so what has not been copied yet is read at once instead.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.copied < rereadLimit {
		s.ended = true
		s.cancel()
	}
}

func (s *stream) run(ctx, following context.Context) {
	err := s.copyPatiently(following, true)
	if s.isEnded() && ctx.Err() == nil {
		err = s.copyPatiently(ctx, false)
	}
	s.flush()
	if err != nil && ctx.Err() == nil {
		s.logs.streams.Note(fmt.Sprintf("the log of container %s of pod %s cannot be read: %v", s.container, s.pod, err))
	}
}

func (s *stream) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *stream) copyPatiently(ctx context.Context, follow bool) error {
	var err error
	for range logAttempts {
		request := s.logs.client.rest.Get().
			AbsPath("/api/v1/namespaces", s.namespace, "pods", s.pod, "log").
			Param("container", s.container).Param("stream", s.name)
		if follow {
			request = request.Param("follow", "true")
		}
		var body io.ReadCloser
		if body, err = request.Stream(ctx); err == nil {
			defer body.Close()
			if !follow {
				// What came while following has been copied.
				if _, err := io.CopyN(io.Discard, body, s.copied); err != nil {
					return nil
				}
			}
			// A log cut off by its server is not worth more than what came.
			_, _ = io.Copy(s, body)
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logPause):
		}
	}
	return err
}

// Write passes bytes on: as they are, or in whole lines under the container's
// name.
func (s *stream) Write(data []byte) (int, error) {
	s.mu.Lock()
	s.copied += int64(len(data))
	s.mu.Unlock()
	if s.logs.plain {
		return s.to.Write(data)
	}
	text := string(append(s.partial, data...))
	end := strings.LastIndexByte(text, '\n') + 1
	s.partial = []byte(text[end:])
	return len(data), s.print(text[:end])
}

func (s *stream) flush() {
	if len(s.partial) > 0 {
		_ = s.print(string(s.partial) + "\n")
	}
}

func (s *stream) print(lines string) error {
	if lines == "" {
		return nil
	}
	var text strings.Builder
	for line := range strings.Lines(lines) {
		fmt.Fprintf(&text, "[%s %s] %s", s.pod, s.container, line)
	}
	s.logs.mu.Lock()
	defer s.logs.mu.Unlock()
	_, err := io.WriteString(s.to, text.String())
	return err
}
