package workload

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/kube/containerlog"
)

const (
	// fallbackSilence bounds the time without a byte from the API server once all
	// containers have ended.
	fallbackSilence = 15 * time.Second
	// waitPeriod is the interval of the checks in wait.
	waitPeriod = 200 * time.Millisecond
	// Servers do not end. Once everything else has ended, wait passes on their output
	// until none has come for serverQuiet, but no longer than serverLast.
	serverQuiet = 500 * time.Millisecond
	serverLast  = 5 * time.Second
)

// logs copies the output of containers to the workload's streams. Each node serves
// the output of its containers, over all their restarts, from the runtime's log files
// (nodelog.go). If a node does not, the output comes from the API server, which has a
// separate log for each run of a container (stream.go).
type logs struct {
	client  *Client
	streams Streams
	// plain reports whether exactly one container runs at a time. Then its output is
	// copied unchanged; otherwise each line begins with the container's name.
	plain bool
	pause time.Duration // resumePause, except in tests
	// These three hold the constants with the same names, except in tests.
	lostAfter, incompleteAfter, roleAbsent time.Duration
	// nodes holds the streams from nodes by pod and container.
	nodes map[string]*nodeStream
	turns turns
	// pods holds the last state of each pod that has a stream from a node.
	pods map[string]*corev1.Pod
	// servers holds the pods that do not end by themselves.
	servers map[types.UID]bool
	// followed holds the streams from the API server by container ID.
	followed map[string][]*stream
	// latest holds the streams from the API server of the latest run of each container,
	// by pod and container name.
	latest map[string][]*stream
	// running counts the streams that have not ended. ended receives a value when one ends.
	running atomic.Int64
	ended   chan struct{}
	// passed is the time of the last write, in Unix nanoseconds. busy reports whether a
	// write is in progress.
	passed atomic.Int64
	busy   atomic.Bool

	mu sync.Mutex // serialises output and the steps that follow it
}

func newLogs(client *Client, streams Streams, plain bool) *logs {
	if streams.Progress == nil {
		streams.Progress = &Progress{}
	}
	l := &logs{
		client: client, streams: streams, plain: plain, pause: resumePause, lostAfter: lostAfter,
		incompleteAfter: incompleteAfter, roleAbsent: roleAbsent, ended: make(chan struct{}, 1),
		nodes: map[string]*nodeStream{}, pods: map[string]*corev1.Pod{}, servers: map[types.UID]bool{},
		followed: map[string][]*stream{}, latest: map[string][]*stream{},
	}
	l.turns.writes = l.fallbackWrites
	return l
}

// piece is a part of a container's standard output or standard error.
type piece struct {
	kind containerlog.Kind
	text []byte
}

// fallbackWrites reports whether more output of a stream that its node does not serve
// will come from the API server, even if the log there has not been requested yet.
func (l *logs) fallbackWrites(s *nodeStream) bool {
	if pod := l.pods[string(s.uid)]; pod != nil {
		for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
			if status.Name == s.container && hasLog(status) && l.followed[status.ContainerID] == nil {
				return true
			}
		}
	}
	return slices.ContainsFunc(l.latest[s.key()], func(s *stream) bool { return !isClosed(s.done) })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// deliver writes output to the workload's streams, and then applies step. It returns
// the error of a write, without having applied step.
func (l *logs) deliver(pieces []piece, step Step) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy.Store(true)
	defer l.busy.Store(false)
	for _, p := range pieces {
		if len(p.text) == 0 {
			continue
		}
		to := l.streams.Out
		if p.kind == containerlog.KindStderr {
			to = l.streams.Err
		}
		if _, err := to.Write(p.text); err != nil {
			return err
		}
	}
	l.apply(step)
	l.passed.Store(time.Now().UnixNano())
	return nil
}

// follows applies a step after the output that was delivered before. It blocks while
// that output is being written.
func (l *logs) follows(step Step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.apply(step)
}

func (l *logs) apply(step Step) {
	l.streams.Progress.Apply(step)
	if l.streams.Lose != nil {
		for _, lost := range step.Lost {
			l.streams.Lose(lost.Message, lost.Loss)
		}
	}
}

// follow starts the streams of each container of the pod that has started and is not
// followed yet. It ends the streams of containers that will not run again.
func (l *logs) follow(ctx context.Context, pod *corev1.Pod) {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		key := string(pod.UID) + "/" + status.Name
		s := l.nodes[key]
		if s == nil {
			if status.ContainerID == "" || !started(status) && status.LastTerminationState.Terminated == nil {
				continue
			}
			s = newNodeStream(l, logPlace{pod.Namespace, pod.Name, pod.Spec.NodeName}, pod.UID, status.Name)
			s.created = pod.CreationTimestamp.Time
			l.startNodeStream(ctx, s)
		}
		l.pods[string(pod.UID)] = pod
		if ended {
			for _, latest := range l.latest[key] {
				latest.endContainer()
				latest.finish()
			}
		}
		if s.isAbsent() && hasLog(status) {
			l.followThere(ctx, pod, status, s, ended)
		}
	}
	if ended {
		l.endStreams(pod)
	}
}

// started reports whether a container has run. The runtime gives the beginning of 1970 for
// one that could not be started.
func started(status corev1.ContainerStatus) bool {
	return status.State.Running != nil || status.State.Terminated != nil && status.State.Terminated.StartedAt.Unix() > 0
}

// hasLog reports whether the API server has a log of the container. While a container
// waits for its restart, status.ContainerID belongs to its last run.
func hasLog(status corev1.ContainerStatus) bool {
	last := status.LastTerminationState.Terminated
	return status.ContainerID != "" && (started(status) || last != nil && last.ContainerID == status.ContainerID)
}

// startNodeStream starts a stream unless another process has completed it.
func (l *logs) startNodeStream(ctx context.Context, s *nodeStream) {
	l.nodes[s.key()] = s
	mark, complete := l.streams.Progress.of(s.key())
	if complete {
		close(s.done)
		return
	}
	s.begun = mark.Position != containerlog.Position{}
	if l.plain {
		l.turns.add(s)
	}
	mark.logPlace = logPlace{s.namespace, s.pod, s.node}
	if s.mark = mark; !s.absent {
		l.streams.Progress.Apply(Step{Key: s.key(), Mark: s.mark, Begun: true})
	}
	l.start(func() { s.run(ctx) })
}

// endStreams ends the streams from the node of a pod that has ended. The pod's last
// state may not contain their containers: a kubelet forgets the containers of a pod that
// it has evicted or, after a restart, refused. A pod on a lost node fails while its
// containers still run.
func (l *logs) endStreams(pod *corev1.Pod) {
	statuses := slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
	for _, s := range l.nodes {
		if s.uid == pod.UID {
			s.end(!slices.ContainsFunc(statuses, func(status corev1.ContainerStatus) bool {
				return status.Name == s.container && status.State.Terminated != nil
			}))
		}
	}
	l.turns.pass()
}

// followThere follows a container's log at the API server, after the mark of the
// stream from its node.
func (l *logs) followThere(ctx context.Context, pod *corev1.Pod, status corev1.ContainerStatus, from *nodeStream, podEnded bool) {
	if l.followed[status.ContainerID] == nil {
		mark := from.reached()
		l.beginPrevious(ctx, pod, status, mark)
		l.begin(ctx, pod, status, mark, false)
	}
	if status.State.Terminated != nil {
		l.containerEnded(status.ContainerID)
	} else if last := status.LastTerminationState.Terminated; last != nil {
		l.containerEnded(last.ContainerID)
	}
	if podEnded {
		for _, s := range l.followed[status.ContainerID] {
			s.finish()
		}
	}
}

// firstStream returns the name of the stream that is copied to Streams.Out.
func (l *logs) firstStream() string {
	if l.streams.Existing {
		return mixedStreams
	}
	return "Stdout"
}

// beginPrevious starts the streams of the container's previous run, unless all of its
// output was passed on. The kubelet serves no log of the runs before that one, so
// beginPrevious reports their output as lost.
func (l *logs) beginPrevious(ctx context.Context, pod *corev1.Pod, status corev1.ContainerStatus, mark Mark) {
	missed := int(status.RestartCount) - mark.Generation
	there, complete := l.streams.Progress.of(status.ContainerID + "/" + l.firstStream())
	if missed <= 0 || l.latest[string(pod.UID)+"/"+status.Name] != nil || complete || there.Offset > 0 {
		return
	}
	last := status.LastTerminationState.Terminated
	served := last != nil && last.ContainerID != "" && last.ContainerID != status.ContainerID
	if missed > 1 || !served {
		lost := lostOutput(pod.Name, status.Name, containerlog.Loss{}, "the kubelet has no log of its earlier runs")
		l.start(func() { l.follows(Step{Lost: lost}) }) // the reader may pause
	}
	if served {
		status.ContainerID, status.RestartCount = last.ContainerID, status.RestartCount-1
		l.begin(ctx, pod, status, mark, true)
	}
}

// begin starts the streams of one run of a container. They copy nothing before the
// streams of the previous run have ended. mark counts the output of the present run
// that was passed on before. replaced reports whether a later run has begun. Then the first
// request is already for the container's previous log.
func (l *logs) begin(ctx context.Context, pod *corev1.Pod, status corev1.ContainerStatus, mark Mark, replaced bool) {
	name := string(pod.UID) + "/" + status.Name
	before := l.latest[name]
	streams := []*stream{newStream(l, pod, status, l.firstStream())}
	if !l.streams.Existing {
		streams = append(streams, newStream(l, pod, status, "Stderr"))
		streams[0].node = l.nodes[name]
		if mark.Generation == int(status.RestartCount) {
			streams[0].earlier = max(streams[0].earlier, mark.SentOut-int64(len(mark.Out)))
			streams[1].earlier = max(streams[1].earlier, mark.SentErr-int64(len(mark.Err)))
		}
	}
	for i, s := range streams {
		s.turn, s.replaced = l.nodes[name].turn, replaced
		var predecessor *stream
		if before != nil {
			predecessor = before[i]
			predecessor.replace()
		}
		s.start(ctx, predecessor)
	}
	l.followed[status.ContainerID], l.latest[name] = streams, streams
}

// containerEnded tells the streams of a container that its log grows no more.
func (l *logs) containerEnded(id string) {
	for _, s := range l.followed[id] {
		s.endContainer()
	}
}

// retry follows the logs of pods at the API server if their node does not serve them. It
// is called whenever a stream has ended.
func (l *logs) retry(ctx context.Context) {
	for _, pod := range l.pods {
		absent := func(status corev1.ContainerStatus) bool {
			s := l.nodes[string(pod.UID)+"/"+status.Name]
			return s != nil && s.isAbsent() && l.followed[status.ContainerID] == nil
		}
		if slices.ContainsFunc(slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses), absent) {
			l.follow(ctx, pod)
		}
	}
	l.turns.pass()
}

// abandon ends the streams of a deleted pod. If the end of a container was not
// reported, its node may be lost, and a request for its log hangs.
func (l *logs) abandon(pod *corev1.Pod) {
	l.endStreams(pod)
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if status.State.Terminated == nil {
			for _, s := range l.followed[status.ContainerID] {
				s.abandon()
			}
		}
	}
}

// wait returns nil when every stream has ended, or only streams of servers are
// left and silent. Meanwhile it passes changes to handle, because the end of a pod ends a stream.
// Streams from nodes have their own timeouts. If only streams from the API server are
// left, wait gives them up after fallbackSilence, and reports a loss. It returns the
// cause of ctx when ctx ends, or the error of handle.
func (l *logs) wait(ctx context.Context, changes <-chan change, handle func(change) error) error {
	ticker := time.NewTicker(waitPeriod)
	defer ticker.Stop()
	began := time.Now()
	l.passed.Store(began.UnixNano())
	for {
		// A stream from a node may end after retry, and then the next call of retry follows
		// the rest at the API server.
		ended := l.running.Load() == 0
		if l.retry(ctx); ended && l.running.Load() == 0 {
			return nil
		}
		silent := time.Since(time.Unix(0, l.passed.Load()))
		if l.onlyServersRun() && (silent > serverQuiet && !l.busy.Load() || time.Since(began) > serverLast) {
			return nil
		}
		if silent > fallbackSilence && !l.busy.Load() && !l.nodesRun() {
			why := fmt.Sprintf("the API server has given nothing of the logs of ended containers for %s", fallbackSilence)
			l.follows(Step{Lost: lostOutput("", "", containerlog.Loss{}, why)})
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case c := <-changes:
			if err := handle(c); err != nil {
				return err
			}
		case <-l.ended:
		case <-ticker.C:
		}
	}
}

// nodesRun reports whether a stream from a node has not ended.
func (l *logs) nodesRun() bool {
	for _, s := range l.nodes {
		if !isClosed(s.done) {
			return true
		}
	}
	return false
}

// onlyServersRun reports whether all streams that have not ended come from nodes and
// belong to servers.
func (l *logs) onlyServersRun() bool {
	running := int64(0)
	for _, s := range l.nodes {
		if isClosed(s.done) {
			continue
		}
		if !l.servers[s.uid] {
			return false
		}
		running++
	}
	return running == l.running.Load()
}

// start runs a stream.
func (l *logs) start(run func()) {
	l.running.Add(1)
	go func() {
		defer func() {
			l.running.Add(-1)
			select {
			case l.ended <- struct{}{}:
			default:
			}
		}()
		run()
	}()
}

// lostOutput describes lost output of a container, or of unnamed containers if
// container is empty.
func lostOutput(pod, container string, loss containerlog.Loss, why string) []LostOutput {
	text := fmt.Sprintf("output of containers is lost (%s): %s", describe(loss), why)
	if container != "" {
		text = fmt.Sprintf("output of container %s of pod %s is lost (%s): %s", container, pod, describe(loss), why)
	}
	return []LostOutput{{loss, text}}
}

// Losses sums up what was lost.
type Losses struct {
	// Unknown reports that there were losses of unknown size.
	Unknown bool              `json:"unknown,omitempty"`
	Sum     containerlog.Loss `json:"sum"`
}

// Add adds a loss. The zero value of loss stands for a loss of unknown size.
func (l *Losses) Add(loss containerlog.Loss) {
	l.Unknown = l.Unknown || loss == (containerlog.Loss{})
	l.Sum.Lines += loss.Lines
	l.Sum.Bytes += loss.Bytes
}

// String describes the lost output, such as "at least 3 lines, 120 bytes". It returns ""
// if nothing was lost.
func (l *Losses) String() string {
	switch some := l.Sum != (containerlog.Loss{}); {
	case !some && !l.Unknown:
		return ""
	case some && l.Unknown:
		return "at least " + describe(l.Sum)
	}
	return describe(l.Sum)
}

func describe(loss containerlog.Loss) string {
	switch {
	case loss == (containerlog.Loss{}):
		return "an unknown part"
	case loss.Lines == 0:
		return fmt.Sprintf("%d bytes", loss.Bytes)
	}
	return fmt.Sprintf("%d lines, %d bytes", loss.Lines, loss.Bytes)
}
