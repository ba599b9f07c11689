package workload

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/containerlog"
)

const (
	// logAttempts is the number of attempts to open a log, and logPause the time between
	// two: the kubelet may report a container a moment before it can serve its log.
	logAttempts = 20
	logPause    = 50 * time.Millisecond
	// resumePause is the longest time to wait for the report that a container has ended,
	// after its log has ended. It is also the time between attempts to reach a server that
	// restarts.
	resumePause = 500 * time.Millisecond
	// foreignAttempts is the number of attempts to read a log that seems to be
	// another container's. With the pauses they last longer than the 10 s that
	// the kubelet may need to report a container after an outage.
	foreignAttempts = 30
	// rereadLimit is the largest log of an ended container, in bytes, that is read again
	// from the start. A larger log is followed until the kubelet ends it (see
	// stream.finish), or is assumed to be complete. The limit is well below the size at
	// which the kubelet rotates a log.
	rereadLimit = 1 << 20
)

// mixedStreams is the name of a log with standard output and standard error. The API server
// separates them only with the feature gate PodLogsQuerySplitStreams (alpha in Kubernetes
// 1.36), which berth's clusters enable.
const mixedStreams = "All"

// errRotated is the error for a log that no longer begins with the bytes that were copied
// from it.
var errRotated = errors.New("the beginning of the log has been rotated away")

// errForeign is the error for a log that seems to belong to a later run of the container,
// which the API server does not know yet.
var errForeign = errors.New("the log begins too late")

// errReplaced is the error if the API server no longer has a log of the container, because
// it was replaced by a later one with the same name.
var errReplaced = errors.New("the container has been replaced")

// cutByDeletion is the reason for the loss of the end of a log.
const cutByDeletion = "its pod was deleted before it was read to the end"

// stream copies one output stream of one run of a container from the API server. If the
// log breaks off, because a part of the cluster restarts, stream reads it again from its
// start, or with timestamps from shortly before the last line, and continues after the bytes
// that it has copied. No line is lost or repeated.
type stream struct {
	logs                      *logs
	namespace, pod, container string
	podUID                    types.UID
	containerID               string
	name                      string // "Stdout", "Stderr" or mixedStreams
	// cancel ends the request that follows the log. abandon ends the stream.
	cancel, abandon context.CancelFunc

	// containerEnded is closed when the container writes no more to its log.
	containerEnded chan struct{}
	endOnce        sync.Once
	// done is closed when the stream has ended.
	done chan struct{}
	// node is the stream that the node did not serve; nil for standard error.
	node *nodeStream
	turn <-chan struct{} // see nodeStream

	mu       sync.Mutex
	copied   int64 // bytes
	ended    bool
	replaced bool // a later run of the container has its own stream

	// The rest belongs to run.
	seen    maphash.Hash // of the copied bytes
	last    time.Time    // of the last copied bytes
	partial []byte       // of a line, where lines are kept whole
	earlier int64        // bytes that another process has passed on
	first   time.Time    // of the first copied byte
	opened  bool         // the log was opened at least once
	cut     bool         // the last reading of the log ended with an error
	foreign int          // attempts that returned errForeign
	broken  bool         // a write to the workload's streams failed
	stamps  *timestamps  // nil if the log is read without timestamps
}

func newStream(l *logs, pod *corev1.Pod, container corev1.ContainerStatus, name string) *stream {
	s := &stream{
		logs: l, namespace: pod.Namespace, pod: pod.Name, container: container.Name,
		podUID: pod.UID, containerID: container.ContainerID,
		name: name, containerEnded: make(chan struct{}), done: make(chan struct{}),
	}
	mark, _ := l.streams.Progress.of(s.key())
	if l.streams.Existing {
		s.copied = mark.Offset
		s.stamps = &timestamps{stream: s, at: mark.Line, whole: mark.Line}
	} else {
		s.earlier = mark.Offset
	}
	return s
}

// key identifies the stream in a Progress.
func (s *stream) key() string { return s.containerID + "/" + s.name }

// start starts to copy in a goroutine, after predecessor has ended. predecessor may be
// nil.
func (s *stream) start(run context.Context, predecessor *stream) {
	ctx, abandon := context.WithCancel(run)
	s.abandon = abandon
	following, cancel := context.WithCancel(ctx)
	s.cancel = cancel // abandon cancels the parent of this context
	s.logs.start(func() {
		defer close(s.done)
		defer s.abandon()
		if predecessor != nil {
			<-predecessor.done
		}
		if _, complete := s.logs.streams.Progress.of(s.key()); complete {
			return
		}
		s.run(ctx, following)
		if run.Err() == nil && !s.broken {
			if s.node != nil {
				<-s.node.done
				s.node.reportUnwritten(run)
			}
			s.logs.follows(Step{Key: s.key(), Complete: true})
		}
	})
}

// replace makes the stream end, because a later run of the container has begun.
func (s *stream) replace() {
	s.mu.Lock()
	s.replaced = true
	s.mu.Unlock()
	s.endContainer()
	s.finish()
}

func (s *stream) endContainer() {
	s.endOnce.Do(func() { close(s.containerEnded) })
}

// finish makes the stream end soon, because its container writes no more. The kubelet
// ends a followed log up to a second after the container. So finish cancels the following
// request, and run requests the rest of the log without following. It does so only below
// rereadLimit.
func (s *stream) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended && s.rereads() {
		s.ended = true
		s.cancel()
	}
}

// rereads reports whether the log can be read again quickly.
func (s *stream) rereads() bool { return s.copied < rereadLimit || s.stamps != nil }

func (s *stream) run(ctx, following context.Context) {
	err := s.copyToEnd(following, true)
	if s.isEnded() && ctx.Err() == nil {
		err = s.copyToEnd(ctx, false)
	}
	s.flush()
	if err != nil && ctx.Err() == nil {
		s.lose(fmt.Sprintf("it cannot be read: %v", err))
	}
}

func (s *stream) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *stream) isReplaced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.replaced
}

func (s *stream) lose(why string) {
	s.logs.follows(Step{Lost: lostOutput(s.pod, s.container, containerlog.Loss{}, why)})
}

// copyToEnd copies the rest of the log. With follow, it continues until the container has
// ended; without, it copies what the log contains now. It takes the end of an answer for
// the end of the log only if the container had ended before the request: when the kubelet
// dies, the API server ends its answer without an error, too. copyToEnd returns nil if
// ctx ends, or if it has reported the rest as lost.
func (s *stream) copyToEnd(ctx context.Context, follow bool) error {
	refused := 0
	for {
		last := !follow || s.hasContainerEnded()
		err := s.copyOnce(ctx, !last, follow && s.opened || s.isReplaced())
		pause, ended := s.logs.pause, s.containerEnded
		var status apierrors.APIStatus
		switch {
		case ctx.Err() != nil || s.broken:
			return nil
		case err == nil && last:
			return nil
		case err == nil:
			refused = 0
		case errors.Is(err, errReplaced):
			s.lose("another container was started in its place meanwhile")
			return nil
		case errors.As(err, &status):
			if refused++; refused == logAttempts {
				if !apierrors.IsNotFound(err) {
					return err
				}
				// The pod was deleted. A log that ended without an error is complete.
				switch {
				case !s.opened:
					s.lose("its pod was deleted before it was read")
				case s.cut:
					s.lose(cutByDeletion)
				}
				return nil
			}
			if status.Status().Code < http.StatusInternalServerError {
				pause = logPause
			}
			ended = nil
		case errors.Is(err, errKubelet) && last:
			if refused++; refused == logAttempts {
				return err
			}
			ended = nil
		default:
			refused, ended = 0, nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
			if !s.rereads() {
				return nil
			}
		case <-time.After(pause):
		}
	}
}

func (s *stream) hasContainerEnded() bool {
	select {
	case <-s.containerEnded:
		return true
	default:
		return false
	}
}

// copyOnce opens the log and copies it to its end. It returns an error if the log breaks
// off before. If unsure is set, it first checks that the log belongs to this run of the
// container.
func (s *stream) copyOnce(ctx context.Context, follow, unsure bool) error {
	which := reading{follow: follow}
	var err error
	if unsure {
		if which.previous, err = s.isPrevious(ctx); err != nil {
			return err
		}
	}
	if follow && s.stamps != nil && s.stamps.isSetBack() {
		if err := s.copyPresent(ctx, which); err != nil || s.hasContainerEnded() {
			return err
		}
	}
	body, err := s.open(ctx, which)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // body is never nil
	// Check after the log was opened: if the container has the right log now, it was the
	// right one before, too.
	if unsure && s.stamps == nil && s.foreign < foreignAttempts {
		if err := s.checkBeginning(ctx, which); err != nil {
			return err
		}
	}
	if s.stamps != nil {
		return s.stamps.copy(ctx, which, body)
	}
	s.foreign = 0
	if err = s.skip(body); errors.Is(err, errRotated) {
		s.opened, s.cut = true, true
		s.lose("its beginning was rotated away while it was read")
		which.since = s.last
		rest, openErr := s.open(ctx, which)
		if openErr != nil {
			return openErr
		}
		_ = body.Close()
		body, err = rest, nil
	}
	if err == nil {
		_, err = io.Copy(s, body)
	}
	if !errors.Is(err, errUnopened) {
		s.opened, s.cut = true, err != nil && ctx.Err() == nil
	}
	return err
}

// copyPresent copies what the log contains now. The answer ends, so it shows whether the log still
// contains the place reached.
func (s *stream) copyPresent(ctx context.Context, which reading) error {
	which.follow = false
	body, err := s.open(ctx, which)
	if err != nil {
		return err
	}
	defer body.Close()
	return s.stamps.copy(ctx, which, body)
}

// skip reads the bytes of body that have been copied already. It returns errRotated if
// body begins with other bytes.
func (s *stream) skip(body io.Reader) error {
	if s.copied == 0 {
		return s.skipEarlier(body)
	}
	var again maphash.Hash
	again.SetSeed(s.seen.Seed())
	_, err := io.CopyN(&again, body, s.copied)
	if errors.Is(err, io.EOF) || err == nil && again.Sum64() != s.seen.Sum64() {
		return errRotated
	}
	return err
}

// skipEarlier reads the bytes that another process has passed on, and counts them as
// copied. It returns errRotated if body has fewer bytes.
func (s *stream) skipEarlier(body io.Reader) error {
	var read maphash.Hash
	skipped, err := io.CopyN(&read, body, s.earlier)
	if errors.Is(err, io.EOF) {
		s.earlier, s.last = 0, time.Now()
		return errRotated
	}
	if err != nil || skipped == 0 {
		return err
	}
	s.mu.Lock()
	s.copied = skipped
	s.mu.Unlock()
	s.seen, s.earlier = read, 0
	s.last = time.Now()
	s.first = s.last
	return nil
}

// isPrevious reports whether the log of this run is the container's previous log, because
// a later run has begun. It returns errReplaced if the API server has neither of the two.
func (s *stream) isPrevious(ctx context.Context) (bool, error) {
	object, err := s.logs.client.dynamic.Resource(podResource).Namespace(s.namespace).Get(ctx, s.pod, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	var pod corev1.Pod
	if err := fromUnstructured(object, &pod); err != nil {
		return false, err
	}
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.Name != s.container || pod.UID != s.podUID {
			continue
		}
		if last := status.LastTerminationState.Terminated; last != nil && last.ContainerID == s.containerID {
			return true, nil
		}
		if status.ContainerID == s.containerID {
			return false, nil
		}
	}
	return false, errReplaced
}

// checkBeginning returns errForeign if the log's first line is later than the first byte
// that was copied. The kubelet may serve the log of a later run before the API server
// knows about that run.
func (s *stream) checkBeginning(ctx context.Context, which reading) error {
	if s.copied == 0 {
		return nil // nothing was copied that could tell the two logs apart
	}
	body, err := s.open(ctx, reading{previous: which.previous, beginning: true})
	if err != nil {
		return err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	stamp, _, _ := strings.Cut(string(text), " ")
	if began, err := time.Parse(time.RFC3339Nano, stamp); err != nil || began.After(s.first) {
		s.foreign++
		return errForeign
	}
	return nil
}

// reading selects the part of a log to request.
type reading struct {
	follow, previous bool
	since            time.Time
	beginning        bool // only the time of the first line
}

func (s *stream) open(ctx context.Context, which reading) (io.ReadCloser, error) {
	request := s.logs.client.rest.Get().
		AbsPath("/api/v1/namespaces", s.namespace, "pods", s.pod, "log").
		Param("container", s.container)
	if s.name != mixedStreams {
		request = request.Param("stream", s.name)
	}
	if which.follow {
		request = request.Param("follow", "true")
	}
	if which.previous {
		request = request.Param("previous", "true")
	}
	if s.stamps != nil {
		request = request.Param("timestamps", "true")
		which.since = s.stamps.since()
	}
	if which.beginning {
		request = request.Param("timestamps", "true").Param("limitBytes", "64")
	}
	if !which.since.IsZero() {
		request = request.Param("sinceTime", which.since.UTC().Format(time.RFC3339))
	}
	body, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	return &kubeletReader{ReadCloser: body, stream: s, follow: which.follow}, nil
}

// Write passes bytes on: unchanged if logs.plain is set, otherwise in whole lines that
// begin with the container's name.
func (s *stream) Write(data []byte) (int, error) {
	s.mu.Lock()
	s.copied += int64(len(data))
	s.mu.Unlock()
	_, _ = s.seen.Write(data)
	s.last = time.Now()
	if s.first.IsZero() {
		s.first = s.last
	}
	text := data
	if !s.logs.plain {
		text, s.partial = withPrefix(s.prefix(), s.partial, data)
	}
	if err := s.pass(text, s.copied-int64(len(s.partial))); err != nil {
		s.broken = true
		return 0, err
	}
	return len(data), nil
}

func (s *stream) prefix() []byte { return fmt.Appendf(nil, "[%s %s] ", s.pod, s.container) }

func (s *stream) pass(text []byte, until int64) error {
	kind := containerlog.KindStdout
	if s.name == "Stderr" {
		kind = containerlog.KindStderr
	}
	await(s.turn)
	mark := Mark{Position: containerlog.Position{Offset: until}}
	if s.stamps != nil {
		if mark.Line = s.stamps.whole; until == s.copied {
			mark.Line = s.stamps.at
		}
	}
	return s.logs.deliver([]piece{{kind, text}}, Step{Key: s.key(), Mark: mark})
}

func (s *stream) flush() {
	if len(s.partial) > 0 {
		text, _ := withPrefix(s.prefix(), s.partial, newline)
		_ = s.pass(text, s.copied)
	}
}
