package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth.dev/berth/internal/kube/containerlog"
)

// node serves the logs of a pod p in the namespace default.
type node struct {
	dir string // of the container main
	// unwritten is the file whose length counts its output that was not written.
	unwritten string
	// breakAfter ends each answer after so many bytes; 0 never.
	breakAfter atomic.Int64
	// instead, where set, is the status of the kubelet's answers.
	instead atomic.Int64
	handler http.Handler
}

func newNode(t *testing.T, pod string) *node {
	t.Helper()
	return newNodeWith(t, pod, containerlog.DefaultSpool)
}

// newNodeWith returns a node that keeps spool bytes of deleted logs.
func newNodeWith(t *testing.T, pod string, spool int64) *node {
	t.Helper()
	root := t.TempDir()
	n := &node{dir: filepath.Join(root, pod, "main")}
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	watcher, err := containerlog.NewWatcher(root, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	watcher.Spool = spool
	watcher.Unwritten = t.TempDir()
	n.unwritten = filepath.Join(watcher.Unwritten, pod, "main")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- watcher.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	n.handler = http.StripPrefix("/api/v1/nodes/n/proxy/logs/containers/", watcher)
	return n
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if code := int(n.instead.Load()); code != 0 || !strings.Contains(r.URL.Path, "/proxy/") {
		http.Error(w, "no", max(code, http.StatusNotFound))
		return
	}
	if limit := n.breakAfter.Load(); limit > 0 {
		w = &breaking{w, limit}
	}
	n.handler.ServeHTTP(w, r)
}

// breaking is an answer that breaks off.
type breaking struct {
	http.ResponseWriter
	left int64
}

func (b *breaking) Unwrap() http.ResponseWriter { return b.ResponseWriter }

func (b *breaking) Write(data []byte) (int, error) {
	if int64(len(data)) > b.left {
		_, _ = b.ResponseWriter.Write(data[:b.left])
		panic(http.ErrAbortHandler)
	}
	b.left -= int64(len(data))
	return b.ResponseWriter.Write(data)
}

func podOnNode(phase corev1.PodPhase) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u"},
		Spec:       corev1.PodSpec{NodeName: "n"},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", ContainerID: "c", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}}},
	}
}

// writeLog writes a log file of numbered lines, and returns the container's output.
func (n *node) writeLog(t *testing.T, name string, from, to int) string {
	t.Helper()
	var file, output bytes.Buffer
	for i := from; i < to; i++ {
		fmt.Fprintf(&file, "%s stdout F line %d\n", time.Unix(1e9, int64(i)).UTC().Format(time.RFC3339Nano), i)
		fmt.Fprintf(&output, "line %d\n", i)
	}
	if err := os.WriteFile(filepath.Join(n.dir, name), file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return output.String()
}

// followPod follows the pod on the node until it has ended.
func (n *node) followPod(t *testing.T, streams Streams, plain bool) *logs {
	t.Helper()
	return n.followPodTo(t, podOnNode(corev1.PodSucceeded), streams, plain)
}

func (n *node) followPodTo(t *testing.T, end *corev1.Pod, streams Streams, plain bool) *logs {
	t.Helper()
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	l := newLogs(testClient(t, server.URL), streams, plain)
	l.follow(ctx, podOnNode(corev1.PodRunning))
	l.follow(ctx, end)
	if err := l.wait(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	return l
}

// losses describes what was lost so far.
func (l *logs) losses() string {
	losses := l.streams.Progress.Followed().Losses
	return losses.String()
}

// The kubelet no longer knows the containers of a pod that it has evicted.
func TestLogOfEvictedPodEnds(t *testing.T) {
	n := newNode(t, "default_p_u")
	want := n.writeLog(t, "0.log", 0, 10)
	evicted := podOnNode(corev1.PodFailed)
	unknown := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "ContainerStatusUnknown"}}
	evicted.Status.ContainerStatuses[0] = corev1.ContainerStatus{Name: "main", RestartCount: 1, State: unknown, LastTerminationState: unknown}
	var out syncBuffer
	n.followPodTo(t, evicted, Streams{Out: &out, Err: &out, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}, true)
	if out.String() != want {
		t.Errorf("output is %q", out.String())
	}
}

// A kubelet that was restarted may refuse a pod, and names no containers then.
func TestLogOfPodWithoutStatusesEnds(t *testing.T) {
	n := newNode(t, "default_p_u")
	want := n.writeLog(t, "0.log", 0, 10)
	var out syncBuffer
	end := podOnNode(corev1.PodFailed)
	end.Status.ContainerStatuses = nil
	n.followPodTo(t, end, Streams{Out: &out, Err: io.Discard, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}, true)
	if out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
}

func TestBrokenConnectionsLoseAndRepeatNothing(t *testing.T) {
	n := newNode(t, "default_p_u")
	want := n.writeLog(t, "0.log", 0, 30_000) + n.writeLog(t, "1.log", 30_000, 60_000)
	n.breakAfter.Store(700_000) // more than one batch
	var out syncBuffer
	n.followPod(t, Streams{Out: &out, Err: &out, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}, true)
	if out.String() != want {
		t.Errorf("%d bytes that differ from the %d", out.Len(), len(want))
	}
}

// followPart follows the running pod until its mark fits, as a process that is lost then.
func (n *node) followPart(t *testing.T, streams Streams, plain bool, until func(Mark) bool) *logs {
	t.Helper()
	server := httptest.NewServer(n)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l := newLogs(testClient(t, server.URL), streams, plain)
	l.follow(ctx, podOnNode(corev1.PodRunning))
	for !until(markOf(streams.Progress, "u/main")) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if ctx.Err() != nil {
		t.Fatal("the log was not passed on so far")
	}
	cancel()
	<-l.nodes["u/main"].done
	return l
}

// Another process goes on from the marks of the first, also within a line, and does not
// repeat a complete log.
func TestAnotherProcessContinues(t *testing.T) {
	n := newNode(t, "default_p_u")
	n.writeLog(t, "0.log", 0, 1000)
	appendLog := func(text string) {
		log, err := os.OpenFile(filepath.Join(n.dir, "0.log"), os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = log.WriteString(text)
			err = errors.Join(err, log.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	appendLog("2026-01-01T00:00:00Z stdout P one, \n")
	var out syncBuffer
	progress := &Progress{}
	streams := func() Streams {
		progress = ReadProgress(progress.String())
		return Streams{Out: &out, Err: &out, Progress: progress, Lose: func(text string, _ containerlog.Loss) { t.Error(text) }}
	}
	n.followPart(t, streams(), false, func(mark Mark) bool { return string(mark.Out) == "one, " })
	appendLog("2026-01-01T00:00:00Z stdout F two\n")
	for range 2 {
		n.followPod(t, streams(), false)
	}
	want := ""
	for i := range 1000 {
		want += fmt.Sprintf("[p main] line %d\n", i)
	}
	if want += "[p main] one, two\n"; out.String() != want {
		t.Errorf("%d bytes that differ from the %d; the last are %q", out.Len(), len(want), out.String()[max(0, out.Len()-30):])
	}
}

func TestLossIsReportedAndInResult(t *testing.T) {
	n := newNode(t, "default_another_pod")
	var said string
	l := n.followPod(t, Streams{Lose: func(text string, _ containerlog.Loss) { said = text }}, true)
	if !strings.Contains(said, "container main of pod p") || l.losses() == "" {
		t.Errorf("said %q, result %q", said, l.losses())
	}
}

// Output that the runtime cannot write to the log is lost, and counted once, even if
// connections break and another process goes on.
func TestWhatIsNotWrittenToALogIsCountedOnce(t *testing.T) {
	n := newNode(t, "default_p_u")
	n.breakAfter.Store(700_000)
	setUnwritten := func(bytes int) {
		t.Helper()
		err := errors.Join(os.MkdirAll(filepath.Dir(n.unwritten), 0o755), os.WriteFile(n.unwritten, make([]byte, bytes), 0o644))
		if err != nil {
			t.Fatal(err)
		}
	}
	progress := &Progress{}
	for i, bytes := range []int{700, 700, 1000} {
		written := int64(len(n.writeLog(t, "0.log", 0, (i+1)*30_000)))
		setUnwritten(bytes)
		var losses []containerlog.Loss
		var said string
		followed := ReadProgress(progress.String()).Followed()
		progress = NewProgress(followed, func(Step) { // a process that continues from here
			if now := progress.Followed(); now.Losses.Sum.Bytes != now.Marks["u/main"].Unwritten {
				t.Errorf("lost %v, of which %d bytes are known to have been reported", now.Losses, now.Marks["u/main"].Unwritten)
			}
		})
		want := containerlog.Loss{Bytes: int64(bytes) - markOf(progress, "u/main").Unwritten}
		l := n.followPart(t, Streams{Out: io.Discard, Progress: progress, Lose: func(text string, loss containerlog.Loss) {
			said, losses = text, append(losses, loss)
		}}, true, func(mark Mark) bool { return mark.Unwritten == int64(bytes) && mark.SentOut == written })
		switch {
		case want.Bytes == 0 && len(losses) == 0:
		case len(losses) != 1 || losses[0] != want || l.losses() != describe(containerlog.Loss{Bytes: int64(bytes)}):
			t.Errorf("%d bytes: lost %v, result %q, want %v", bytes, losses, l.losses(), want)
		case !strings.Contains(said, "node n could not write it to the log"):
			t.Errorf("said %q", said)
		}
	}
}

// The node sends a loss again if the connection breaks before the position after it.
func TestLossWithoutItsPositionIsCountedOnce(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has(containerlog.EndedParam) {
			return
		}
		err := containerlog.WriteJSON(w, containerlog.KindLoss, containerlog.LostPart{Loss: containerlog.Loss{Lines: 1, Bytes: 7}})
		w.(http.Flusher).Flush()
		if asked.Add(1) == 1 {
			panic(http.ErrAbortHandler)
		}
		err = errors.Join(err, containerlog.WriteJSON(w, containerlog.KindPosition, containerlog.Progress{Position: containerlog.Position{Offset: 20}}),
			containerlog.Frame{Kind: containerlog.KindEnd}.Write(w))
		if err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	said := 0
	l := newLogs(testClient(t, server.URL), Streams{Out: io.Discard, Lose: func(string, containerlog.Loss) { said++ }}, true)
	l.follow(t.Context(), podOnNode(corev1.PodRunning))
	l.follow(t.Context(), podOnNode(corev1.PodSucceeded))
	if err := l.wait(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if want := "1 lines, 7 bytes"; said != 1 || l.losses() != want || asked.Load() < 2 {
		t.Errorf("%d messages, lost %s, want %s, after %d requests", said, l.losses(), want, asked.Load())
	}
}

// A loss is reported though the container writes nothing after it.
func TestLossIsReportedWhileContainerIsIdle(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := errors.Join(containerlog.WriteJSON(w, containerlog.KindLoss, containerlog.LostPart{}), containerlog.Frame{Kind: containerlog.KindAlive}.Write(w))
		if err != nil {
			t.Error(err)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	said := make(chan struct{})
	l := newLogs(testClient(t, server.URL), Streams{Out: io.Discard, Lose: func(string, containerlog.Loss) { close(said) }}, true)
	l.follow(ctx, podOnNode(corev1.PodRunning))
	select {
	case <-said:
	case <-ctx.Done():
		t.Error("the loss is not reported")
	}
	cancel()
	<-l.nodes["u/main"].done
}

// A node is lost after it has sent a part of a log and announced the rest. The API
// server then deletes the pod.
func TestOutputAnnouncedByLostNodeIsCounted(t *testing.T) {
	n := newNode(t, "default_p_u")
	n.writeLog(t, "0.log", 0, 30_000)
	n.breakAfter.Store(100_000) // more than one batch, less than two
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	var lost containerlog.Loss
	progress := &Progress{}
	l := newLogs(testClient(t, server.URL), Streams{
		Out: writerFunc(func() { n.instead.Store(http.StatusServiceUnavailable) }), Progress: progress,
		Lose: func(_ string, loss containerlog.Loss) { lost = loss },
	}, true)
	l.lostAfter = 0
	l.follow(ctx, podOnNode(corev1.PodRunning))
	for markOf(progress, "u/main").SentOut == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	l.abandon(podOnNode(corev1.PodRunning))
	if err := l.wait(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if lost.Bytes == 0 || l.losses() == "" {
		t.Errorf("lost %v, result %q", lost, l.losses())
	}
	if behind := markOf(progress, "u/main").Behind; behind != 0 {
		t.Errorf("%d bytes that were counted are still awaited", behind)
	}
}

// A lost node does not answer at all, and its pod is set to failed before it is
// deleted. It is not taken for a node without the role, whose logs the API
// server has.
func TestLostNodeStillHasItsRole(t *testing.T) {
	n := newNode(t, "default_p_u")
	n.writeLog(t, "0.log", 0, 30_000)
	n.breakAfter.Store(100_000)
	gone := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-gone:
			panic(http.ErrAbortHandler)
		default:
			n.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	var lost containerlog.Loss
	l := newLogs(testClient(t, server.URL), Streams{
		Out:  writerFunc(sync.OnceFunc(func() { close(gone) })),
		Warn: func(text string) { t.Error(text) },
		Lose: func(_ string, loss containerlog.Loss) { lost = loss },
	}, true)
	l.lostAfter, l.roleAbsent = 200*time.Millisecond, 0
	l.follow(ctx, podOnNode(corev1.PodRunning))
	select {
	case <-gone:
	case <-ctx.Done():
	}
	failed := podOnNode(corev1.PodRunning)
	failed.Status.Phase = corev1.PodFailed
	l.follow(ctx, failed)
	l.abandon(failed)
	if err := l.wait(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	if lost.Bytes == 0 || l.losses() == "" {
		t.Errorf("lost %v, result %q", lost, l.losses())
	}
}

// A container may have written more than the node had announced before it was lost,
// also one that the node has called idle.
func TestLostNodeThatAnnouncedEverything(t *testing.T) {
	for _, idle := range []bool{false, true} {
		frames := func(w io.Writer) error {
			err := errors.Join(
				containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte("one\n")}.Write(w),
				containerlog.WriteJSON(w, containerlog.KindPosition, containerlog.Progress{Position: containerlog.Position{Segment: "s", Offset: 4}}))
			if idle {
				err = errors.Join(err, containerlog.Frame{Kind: containerlog.KindAlive}.Write(w))
			}
			return err
		}
		var asked atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has(containerlog.EndedParam) || asked.Add(1) > 1 || frames(w) != nil {
				panic(http.ErrAbortHandler)
			}
		}))
		var lost []string
		l := newLogs(testClient(t, server.URL), Streams{
			Out:  io.Discard,
			Lose: func(text string, _ containerlog.Loss) { lost = append(lost, text) },
		}, true)
		l.lostAfter = 0
		l.follow(t.Context(), podOnNode(corev1.PodRunning))
		for asked.Load() < 2 && t.Context().Err() == nil {
			time.Sleep(time.Millisecond)
		}
		l.abandon(podOnNode(corev1.PodRunning))
		if err := l.wait(t.Context(), nil, nil); err != nil {
			t.Fatal(err)
		}
		server.Close()
		if len(lost) != 1 || l.losses() != describe(containerlog.Loss{}) {
			t.Errorf("idle %v: lost %q, result %q", idle, lost, l.losses())
		}
	}
}

// The reader pauses for longer than a runtime may take to complete a log. What the node
// has sent meanwhile, among it that the container was idle, is not taken for silence.
func TestPausedReaderGetsTheEnd(t *testing.T) {
	progress := func(offset int64) containerlog.Progress {
		return containerlog.Progress{Position: containerlog.Position{Segment: "s", Offset: offset}}
	}
	sent := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has(containerlog.EndedParam) {
			return
		}
		err := errors.Join(
			containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte("one\n")}.Write(w),
			containerlog.WriteJSON(w, containerlog.KindPosition, progress(4)),
			containerlog.Frame{Kind: containerlog.KindAlive}.Write(w),
			containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte("two\n")}.Write(w),
			containerlog.WriteJSON(w, containerlog.KindPosition, progress(8)),
			containerlog.Frame{Kind: containerlog.KindEnd}.Write(w))
		if err != nil {
			t.Error(err)
		}
		close(sent)
	}))
	t.Cleanup(server.Close)
	var out syncBuffer
	reading, readOn := make(chan struct{}), make(chan struct{})
	pause := sync.OnceFunc(func() {
		close(reading)
		<-readOn
	})
	l := newLogs(testClient(t, server.URL), Streams{
		Out:  writerOf(func(data []byte) { pause(); _, _ = out.Write(data) }),
		Lose: func(text string, _ containerlog.Loss) { t.Error(text) },
	}, true)
	l.incompleteAfter = time.Second
	l.follow(t.Context(), podOnNode(corev1.PodRunning))
	<-reading
	<-sent
	l.follow(t.Context(), podOnNode(corev1.PodSucceeded))
	time.Sleep(l.incompleteAfter + 100*time.Millisecond)
	close(readOn)
	if err := l.wait(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if out.String() != "one\ntwo\n" {
		t.Errorf("output %q", out.String())
	}
}

// The log of a pod is deleted and dropped while a slow reader holds up its output,
// which is on its way. It arrives, and the rest is counted exactly.
func TestOutputOfAnEndedPodIsCountedExactly(t *testing.T) {
	n := newNodeWith(t, "default_p_u", 0)
	total := n.writeLog(t, "0.log", 0, 600_000)
	server := httptest.NewServer(n)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	reading, readOn := make(chan struct{}), make(chan struct{})
	arrived := 0
	var lost []containerlog.Loss
	l := newLogs(testClient(t, server.URL), Streams{
		Out: writerOf(func(data []byte) {
			if arrived == 0 {
				close(reading)
				<-readOn
			}
			arrived += len(data)
		}),
		Lose: func(_ string, loss containerlog.Loss) { lost = append(lost, loss) },
	}, true)
	l.follow(ctx, podOnNode(corev1.PodRunning))
	<-reading
	l.follow(ctx, podOnNode(corev1.PodSucceeded))
	if err := os.RemoveAll(n.dir); err != nil {
		t.Fatal(err)
	}
	for n.hasOpen(t) && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	close(readOn)
	if err := l.wait(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	sum := arrived
	for _, loss := range lost {
		sum += int(loss.Bytes)
	}
	if sum != len(total) || slices.Contains(lost, containerlog.Loss{}) {
		t.Errorf("%d bytes arrived, lost %v of %d", arrived, lost, len(total))
	}
}

// hasOpen reports whether this process has a file of the log open.
func (n *node) hasOpen(t *testing.T) bool {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file os.DirEntry) bool {
		target, _ := os.Readlink("/proc/self/fd/" + file.Name())
		return strings.HasPrefix(target, n.dir+"/")
	})
}

// writerOf is called with what is written.
type writerOf func([]byte)

func (f writerOf) Write(data []byte) (int, error) { f(data); return len(data), nil }

// writerFunc is called for what is written.
type writerFunc func()

func (f writerFunc) Write(data []byte) (int, error) { f(); return len(data), nil }
