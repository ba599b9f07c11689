package workload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"berth.dev/berth/internal/kube/containerlog"
)

const (
	// silence is the longest time without a frame from a node, KindAlive
	// included. After that the request is repeated.
	silence = 20 * time.Second
	// lostAfter is the time after which an unreachable node counts as lost, once
	// a pod was deleted whose end nobody saw.
	lostAfter = 15 * time.Second
	// incompleteAfter is the time after which the log of an ended container is
	// given up if it has neither a further byte nor an end.
	incompleteAfter = time.Minute
	// roleAbsent is the time after which a node that answers, and serves no log,
	// counts as one without the role.
	roleAbsent = 10 * time.Second
	// endNotice bounds the request that tells a node of the end of a container.
	endNotice = 5 * time.Second
	// longLine is the length in bytes after which an unfinished line is written with a
	// line break, if lines begin with the container's name.
	longLine = 1 << 20
)

// Mark counts the output of a container that was passed on.
type Mark struct {
	containerlog.Position
	logPlace
	// Line is the place in a log that is read with timestamps.
	Line linePlace `json:"l,omitzero"`
	// Out and Err are beginnings of lines that are not passed on yet.
	Out []byte `json:"out,omitempty"`
	Err []byte `json:"err,omitempty"`
	// SentOut and SentErr count the bytes of the container's present run that the node
	// has sent, including Out and Err.
	SentOut int64 `json:"so,omitempty"`
	SentErr int64 `json:"se,omitempty"`
	// Behind counts the bytes of log files after the position, as the node reported
	// them together with it.
	Behind int64 `json:"b,omitempty"`
	// Unwritten counts the reported bytes that the runtime could not write, in all
	// runs of the container.
	Unwritten int64 `json:"w,omitempty"`
}

// logPlace names the pod and the node of a log. It is empty where the API server
// gives the log.
type logPlace struct {
	Namespace string `json:"ns,omitempty"`
	Pod       string `json:"p,omitempty"`
	Node      string `json:"n,omitempty"`
}

// nodeStream copies the output of one container, over all its restarts, from the log
// files of its node. The API server proxies the requests to the node.
type nodeStream struct {
	logs                      *logs
	namespace, pod, container string
	uid                       types.UID
	node                      string
	prefix                    []byte // of each line; nil where bytes pass as they are
	done                      chan struct{}
	// podGone reports whether the pod was deleted before this process could see it.
	podGone bool
	// turn is closed when the output may be written. It is nil if lines have a prefix.
	turn chan struct{}
	// created is the time when the pod was created, or its container started if podGone.
	// It is zero if unknown. begun reports whether another process has already written a part
	// of the output.
	created time.Time
	begun   bool
	// lost is output that was lost after the mark. It belongs to run.
	lost []LostOutput

	mu sync.Mutex
	// ended is the time when this process learned that the container has ended and does
	// not restart. It is zero before.
	ended time.Time
	// unseen reports whether the end of the container was not seen. The node may be lost.
	unseen bool
	// stop cancels the request in progress.
	stop context.CancelFunc
	// absent reports whether the node cannot serve logs. Then the API server does. Nodes of
	// existing clusters do not have the role, and users there may not ask nodes.
	absent bool
	mark   Mark
}

func newNodeStream(l *logs, place logPlace, uid types.UID, container string) *nodeStream {
	s := &nodeStream{
		logs: l, namespace: place.Namespace, pod: place.Pod, container: container, uid: uid,
		node: place.Node, absent: place.Node == "" || l.streams.Existing, done: make(chan struct{}),
	}
	if !l.plain {
		s.prefix = fmt.Appendf(nil, "[%s %s] ", s.pod, container)
	}
	return s
}

func (s *nodeStream) key() string { return string(s.uid) + "/" + s.container }

// end makes the stream end at the end of its log. unseen reports whether the pod has
// ended or was deleted without a report that the container ended.
func (s *nodeStream) end(unseen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended.IsZero() {
		s.ended, s.unseen = time.Now(), unseen
		if s.stop != nil {
			go s.announceEnd(s.stop)
		}
	}
}

// announceEnd tells the node that the container has ended, so that the node completes
// its answer to the request in progress. Only if the node does not reply, announceEnd
// calls stop: then the node sends output that is on its way a second time, and if it has
// dropped the file since, the size of the loss is unknown.
func (s *nodeStream) announceEnd(stop context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), endNotice)
	defer cancel()
	if s.request().Param(containerlog.EndedParam, "true").Do(ctx).Error() != nil {
		stop()
	}
}

// request returns a request for the log.
func (s *nodeStream) request() *rest.Request { return s.ask("containers") }

// ask returns a request to the node about the container; what is a path of the node's
// log role.
func (s *nodeStream) ask(what string) *rest.Request {
	return s.logs.client.rest.Get().
		AbsPath("/api/v1/nodes", s.node, "proxy/logs", what, fmt.Sprintf("%s_%s_%s", s.namespace, s.pod, s.uid), s.container)
}

// reportUnwritten asks the node how many bytes it could not write to the log, and reports
// them as lost. It is for logs that came from the API server, and is called after run.
func (s *nodeStream) reportUnwritten(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endNotice)
	defer cancel()
	text, err := s.ask("unwritten").DoRaw(ctx)
	if err != nil {
		return // the node is lost, or has not begun to count
	}
	mark := Mark{Unwritten: s.reached().Unwritten}
	if bytes, err := strconv.ParseInt(string(text), 10, 64); err == nil && s.addUnwritten(&mark, bytes) {
		_ = s.reach(mark) // a failed write ends the run
	}
}

// addUnwritten sets the number of unwritten bytes in a mark, and notes the increase as a
// loss. It reports whether the number has grown.
func (s *nodeStream) addUnwritten(mark *Mark, bytes int64) bool {
	more := bytes - mark.Unwritten
	if more <= 0 {
		return false
	}
	s.lose(containerlog.Loss{Bytes: more}, fmt.Sprintf("node %s could not write it to the log, perhaps because its disk or a quota is full", s.node))
	mark.Unwritten = bytes
	return true
}

// endedAt returns the time when this process learned that the container has ended, or the
// zero time.
func (s *nodeStream) endedAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

func (s *nodeStream) isAbsent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.absent
}

// run copies until the log is complete, or ctx ends.
func (s *nodeStream) run(ctx context.Context) {
	defer close(s.done)
	if s.isAbsent() && s.podGone {
		s.leaveToAPIServer()
	}
	received, asked := time.Now(), time.Now()
	for ctx.Err() == nil && !s.isAbsent() {
		s.mu.Lock()
		requestCtx, cancel := context.WithCancel(ctx)
		s.stop = cancel
		final := !s.ended.IsZero()
		s.mu.Unlock()
		complete, got, err := s.copyOnce(requestCtx, final)
		cancel()
		now := time.Now()
		if got {
			received = now
		}
		if !complete {
			s.lost = nil // the node sends the losses after the mark again
		}
		var status apierrors.APIStatus
		code := int32(0)
		if errors.As(err, &status) {
			code = status.Status().Code
		}
		if got || code == 0 || code == http.StatusServiceUnavailable || code == http.StatusGatewayTimeout {
			asked = now // the node has the role, or does not answer
		}
		switch {
		case complete:
			s.complete()
			return
		case ctx.Err() != nil:
			return
		case errors.Is(err, errWriter):
			return // the run is being ended
		case code == http.StatusNotFound || code == http.StatusMethodNotAllowed || code == http.StatusForbidden || now.Sub(asked) > s.logs.roleAbsent:
			s.mu.Lock()
			s.absent = true
			s.mu.Unlock()
			s.leaveToAPIServer()
			return
		}
		s.mu.Lock()
		ended, unseen, behind := s.ended, s.unseen, s.mark.Behind
		s.mu.Unlock()
		if !ended.IsZero() {
			switch since := now.Sub(later(ended, received)); {
			case unseen && since > s.logs.lostAfter, since > s.logs.incompleteAfter:
				s.lose(containerlog.Loss{Bytes: behind}, fmt.Sprintf("node %s does not answer: %v", s.node, err))
				s.complete()
				return
			}
		}
		if final && got || !final && !ended.IsZero() {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(logPause):
		}
	}
}

// leaveToAPIServer records that the API server gives the log. It has none of a deleted pod.
func (s *nodeStream) leaveToAPIServer() {
	if s.podGone {
		s.lose(containerlog.Loss{}, cutByDeletion)
	}
	s.logs.follows(Step{Key: s.key(), Dropped: true, Lost: s.lost})
	s.lost = nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// errWriter is the error of a failed write to the workload's streams.
var errWriter = errors.New("pass the output on")

// copyOnce requests the log after the mark from the node, and copies it. final reports
// whether the container has ended, so that the node ends its answer with the log. complete
// reports whether the stream has the whole log, or has given up the rest as lost. got
// reports whether the node has sent a frame.
func (s *nodeStream) copyOnce(ctx context.Context, final bool) (complete, got bool, err error) {
	s.mu.Lock()
	from, err := json.Marshal(s.mark.Position)
	unwritten := s.mark.Unwritten
	s.mu.Unlock()
	if err != nil {
		return false, false, err
	}
	request := s.request().Param(containerlog.FromParam, string(from)).Param(containerlog.UnwrittenParam, strconv.FormatInt(unwritten, 10))
	if final {
		request = request.Param(containerlog.FinalParam, "true")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	body, err := request.Stream(ctx)
	if err != nil {
		return false, false, err
	}
	defer body.Close()
	reader := bufio.NewReaderSize(body, 64<<10)
	var batch []containerlog.Frame
	// Frames may be read long after they came, because a slow reader holds deliver up.
	passedOn := time.Now()
	for {
		frame, err := containerlog.ReadFrame(reader)
		if err != nil {
			return false, got, err
		}
		got = true
		quiet.Reset(silence)
		switch frame.Kind {
		case containerlog.KindStdout, containerlog.KindStderr:
			batch = append(batch, frame)
			passedOn = time.Now()
		case containerlog.KindPosition:
			quiet.Stop() // a slow reader is not the node's fault
			if err := s.deliver(batch, frame.Data); err != nil {
				return false, got, err
			}
			quiet.Reset(silence)
			batch, passedOn = batch[:0], time.Now()
		case containerlog.KindLoss:
			var lost containerlog.LostPart
			if err := json.Unmarshal(frame.Data, &lost); err != nil {
				return false, got, fmt.Errorf("decode a loss: %w", err)
			}
			why := fmt.Sprintf("its reader was slower than the container, and node %s keeps no more", s.node)
			if lost.Cause != "" {
				why = fmt.Sprintf("node %s cannot read it: %s", s.node, lost.Cause)
			}
			s.lose(lost.Loss, why)
		case containerlog.KindUnknown:
			if final {
				s.lose(containerlog.Loss{}, fmt.Sprintf("node %s does not have its log any more", s.node))
				return true, got, nil
			}
			return false, got, nil
		case containerlog.KindEnd:
			return true, got, nil
		case containerlog.KindAlive:
			if ended := s.endedAt(); !ended.IsZero() && time.Since(later(passedOn, ended)) > s.logs.incompleteAfter {
				s.lose(containerlog.Loss{}, fmt.Sprintf("the runtime of node %s has not completed its log", s.node))
				return true, got, nil
			}
			if len(s.lost) > 0 { // the next position may be far away
				if err := s.reach(s.reached()); err != nil {
					return false, got, err
				}
			}
		}
	}
}

// deliver passes on a batch of frames. position is the payload of the KindPosition frame
// that followed them.
func (s *nodeStream) deliver(batch []containerlog.Frame, position []byte) error {
	var to containerlog.Progress
	if err := json.Unmarshal(position, &to); err != nil {
		return fmt.Errorf("decode a position: %w", err)
	}
	mark := s.reached()
	var pieces []piece
	if to.Generation != mark.Generation {
		pieces = s.remainder(&mark, pieces)
		mark.SentOut, mark.SentErr = 0, 0
	}
	mark.Position, mark.Behind = to.Position, to.Behind
	s.addUnwritten(&mark, to.Unwritten)
	for _, frame := range batch {
		part, sent := &mark.Out, &mark.SentOut
		if frame.Kind == containerlog.KindStderr {
			part, sent = &mark.Err, &mark.SentErr
		}
		*sent += int64(len(frame.Data))
		if s.prefix == nil {
			pieces = append(pieces, piece{frame.Kind, frame.Data})
			continue
		}
		var text []byte
		text, *part = withPrefix(s.prefix, *part, frame.Data)
		pieces = append(pieces, piece{frame.Kind, text})
	}
	await(s.turn)
	return s.reach(mark, pieces...)
}

// reached returns the mark after the output that was passed on.
func (s *nodeStream) reached() Mark {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mark
}

// reach passes on the output up to a mark together with s.lost. It returns errWriter if a
// write fails.
func (s *nodeStream) reach(mark Mark, pieces ...piece) error {
	if err := s.logs.deliver(pieces, Step{Key: s.key(), Mark: mark, Lost: s.lost}); err != nil {
		return errors.Join(errWriter, err)
	}
	s.lost = nil
	s.mu.Lock()
	s.mark = mark
	s.mu.Unlock()
	return nil
}

// lose adds a loss to s.lost, which the next call of reach reports.
func (s *nodeStream) lose(loss containerlog.Loss, why string) {
	s.lost = append(s.lost, lostOutput(s.pod, s.container, loss, why)...)
}

// withPrefix splits part followed by data into lines. It returns the complete lines with
// prefix before each, and the incomplete last line. It completes that line itself if it
// has longLine bytes or more.
func withPrefix(prefix, part, data []byte) (text, left []byte) {
	text = make([]byte, 0, len(data)+len(part)+(1+bytes.Count(data, newline))*len(prefix))
	for len(data) > 0 {
		end := bytes.IndexByte(data, '\n')
		if end < 0 {
			left = append(bytes.Clone(part), data...)
			if len(left) < longLine {
				return text, left
			}
			text = append(append(append(text, prefix...), left...), '\n')
			return text, nil
		}
		text = append(append(append(text, prefix...), part...), data[:end+1]...)
		part, data = nil, data[end+1:]
	}
	return text, part
}

var newline = []byte("\n")

// remainder removes the incomplete lines from a mark, because no more of them follows.
// It appends them to pieces as complete lines.
func (s *nodeStream) remainder(mark *Mark, pieces []piece) []piece {
	for kind, part := range map[containerlog.Kind]*[]byte{containerlog.KindStdout: &mark.Out, containerlog.KindStderr: &mark.Err} {
		if len(*part) > 0 {
			text, _ := withPrefix(s.prefix, *part, newline)
			pieces = append(pieces, piece{kind, text})
			*part = nil
		}
	}
	return pieces
}

// complete passes on the incomplete last lines, and records that the log is complete, so
// that no later process follows it again. A failed write ends the run.
func (s *nodeStream) complete() {
	mark := s.reached()
	_ = s.logs.deliver(s.remainder(&mark, nil), Step{Key: s.key(), Complete: true, Lost: s.lost})
}
