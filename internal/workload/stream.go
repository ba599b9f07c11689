package workload

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// logAttempts and logPause: the kubelet may report a container a moment
	// before it can serve its log.
	logAttempts = 20
	logPause    = 50 * time.Millisecond
	// resumePause is how long the news that a container has ended may be
	// behind the end of its log. It also spaces attempts at a server that is
	// being restarted.
	resumePause = 500 * time.Millisecond
	// rereadLimit is the size up to which an ended container's log is read
	// again from the start rather than awaited, see stream.finish. It is well
	// below the size at which the kubelet rotates a log.
	rereadLimit = 1 << 20
)

// errRotated says that a log no longer begins with what was copied from it.
var errRotated = errors.New("the beginning of the log has been rotated away")

// stream copies one output stream of one container. A log that breaks off,
// because a part of the cluster is restarted, is read again from its start and
// continued where the copy ends; no line is lost or repeated.
type stream struct {
	logs                      *logs
	namespace, pod, container string
	name                      string // "Stdout" or "Stderr"
	to                        io.Writer
	cancel                    context.CancelFunc

	// containerEnded is closed when the log can grow no more.
	containerEnded chan struct{}
	endOnce        sync.Once

	mu     sync.Mutex
	copied int64 // bytes
	ended  bool

	// The rest belongs to run.
	seen    maphash.Hash // of the copied bytes
	last    time.Time    // of the last copied bytes
	partial []byte       // of a line, where lines are kept whole
	broken  bool         // nobody reads what is written
}

func (l *logs) newStream(ctx context.Context, pod *corev1.Pod, container, name string, to io.Writer) *stream {
	following, cancel := context.WithCancel(ctx)
	s := &stream{
		logs: l, namespace: pod.Namespace, pod: pod.Name, container: container,
		name: name, to: to, cancel: cancel, containerEnded: make(chan struct{}),
	}
	l.group.Go(func() {
		defer cancel()
		s.run(ctx, following)
	})
	return s
}

// finish makes the stream end now that its pod has. Followed to its end, a
// log ends up to a second after its container, which is how often the kubelet
// looks; so what has not been copied yet is read at once instead.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.copied < rereadLimit {
		s.ended = true
		s.cancel()
	}
}

func (s *stream) run(ctx, following context.Context) {
	err := s.copyToEnd(following, true)
	if s.isEnded() && ctx.Err() == nil {
		err = s.copyToEnd(ctx, false)
	}
	s.flush()
	if err != nil && ctx.Err() == nil {
		s.note(fmt.Sprintf("cannot be read: %v", err))
	}
}

func (s *stream) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *stream) note(text string) {
	s.logs.streams.Note(fmt.Sprintf("the log of container %s of pod %s %s", s.container, s.pod, text))
}

// copyToEnd copies what has not been copied yet: what there is or, following,
// until the container has ended.
func (s *stream) copyToEnd(ctx context.Context, follow bool) error {
	refused := 0
	for {
		err := s.copyOnce(ctx, follow)
		pause, ended := resumePause, s.containerEnded
		var status apierrors.APIStatus
		switch {
		case ctx.Err() != nil || s.broken:
			return nil
		case err == nil && !follow:
			return nil
		case err == nil:
			// The end of the container, or of a part that passes its log on.
			refused = 0
		case errors.As(err, &status):
			if refused++; refused == logAttempts {
				if apierrors.IsNotFound(err) {
					return nil // the pod has been deleted, and its log with it
				}
				return err
			}
			if status.Status().Code < http.StatusInternalServerError {
				pause = logPause
			}
			ended = nil
		default:
			refused, ended = 0, nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			return nil
		case <-time.After(pause):
		}
	}
}

// copyOnce opens the log and copies to its end. An error says that it broke
// off before.
func (s *stream) copyOnce(ctx context.Context, follow bool) error {
	body, err := s.open(ctx, follow, time.Time{})
	if err != nil {
		return err
	}
	defer func() { body.Close() }()
	if err = s.skip(body); errors.Is(err, errRotated) {
		s.note("was interrupted and is too long to be read again: lines may be missing or repeated")
		body.Close()
		if body, err = s.open(ctx, follow, s.last); err != nil {
			return err
		}
	}
	if err == nil {
		_, err = io.Copy(s, body)
	}
	return err
}

// skip reads over what has been copied already.
func (s *stream) skip(body io.Reader) error {
	if s.copied == 0 {
		return nil
	}
	var again maphash.Hash
	again.SetSeed(s.seen.Seed())
	_, err := io.CopyN(&again, body, s.copied)
	if errors.Is(err, io.EOF) || err == nil && again.Sum64() != s.seen.Sum64() {
		return errRotated
	}
	return err
}

func (s *stream) open(ctx context.Context, follow bool, since time.Time) (io.ReadCloser, error) {
	request := s.logs.client.rest.Get().
		AbsPath("/api/v1/namespaces", s.namespace, "pods", s.pod, "log").
		Param("container", s.container).Param("stream", s.name)
	if follow {
		request = request.Param("follow", "true")
	}
	if !since.IsZero() {
		request = request.Param("sinceTime", since.UTC().Format(time.RFC3339))
	}
	return request.Stream(ctx)
}

// Write passes bytes on: as they are, or in whole lines under the container's
// name.
func (s *stream) Write(data []byte) (int, error) {
	s.mu.Lock()
	s.copied += int64(len(data))
	s.mu.Unlock()
	_, _ = s.seen.Write(data)
	s.last = time.Now()
	if err := s.pass(data); err != nil {
		s.broken = true
		return 0, err
	}
	return len(data), nil
}

func (s *stream) pass(data []byte) error {
	if s.logs.plain {
		_, err := s.to.Write(data)
		return err
	}
	text := string(append(s.partial, data...))
	end := strings.LastIndexByte(text, '\n') + 1
	s.partial = []byte(text[end:])
	return s.print(text[:end])
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
