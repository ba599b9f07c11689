package containerlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// runtime writes the log of one container as containerd and the kubelet do.
type runtime struct {
	t         *testing.T
	root, dir string
	file      *os.File
	records   int
}

func newRuntime(t *testing.T, root string) *runtime {
	t.Helper()
	r := &runtime{t: t, root: root, dir: filepath.Join(root, "default_pod_uid", "main")}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

func (r *runtime) path(name string) string { return filepath.Join(r.dir, name) }

// open makes the file of a generation, or another one after rotate.
func (r *runtime) open(generation int) {
	r.t.Helper()
	r.close()
	file, err := os.OpenFile(r.path(fmt.Sprintf("%d.log", generation)), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		r.t.Fatal(err)
	}
	r.file = file
}

func (r *runtime) close() {
	if r.file != nil {
		r.file.Close()
		r.file = nil
	}
}

// write writes records such as "stdout F text".
func (r *runtime) write(records ...string) {
	r.t.Helper()
	var text bytes.Buffer
	for _, record := range records {
		r.records++
		fmt.Fprintf(&text, "%s %s\n", time.Unix(1e9, int64(r.records)).UTC().Format(time.RFC3339Nano), record)
	}
	if _, err := r.file.Write(text.Bytes()); err != nil {
		r.t.Fatal(err)
	}
}

// rotate gives the present file another name, as the kubelet does before the
// runtime opens a new one.
func (r *runtime) rotate(number int) {
	r.t.Helper()
	if err := os.Rename(r.path("0.log"), r.path(fmt.Sprintf("0.log.20260101-%06d", number))); err != nil {
		r.t.Fatal(err)
	}
}

var discard = slog.New(slog.DiscardHandler)

func startWatcher(t *testing.T, root string) (*Watcher, *httptest.Server) {
	t.Helper()
	w, err := NewWatcher(root, discard)
	if err != nil {
		t.Fatal(err)
	}
	return w, runWatcher(t, w)
}

// runWatcher runs a watcher until the end of the test, with a server.
func runWatcher(t *testing.T, w *Watcher) *httptest.Server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	server := httptest.NewServer(w)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return server
}

// client reads a log as the run does.
type client struct {
	t      *testing.T
	body   io.ReadCloser
	reader *bufio.Reader
	out    map[Kind]*bytes.Buffer
	at     Progress
	losses []Loss
	causes []string
}

func connect(t *testing.T, server *httptest.Server, from Position, final bool) *client {
	t.Helper()
	return connectKnowing(t, server, from, 0, final)
}

// connectKnowing connects a client that knows of unwritten output.
func connectKnowing(t *testing.T, server *httptest.Server, from Position, unwritten int64, final bool) *client {
	t.Helper()
	position, err := json.Marshal(from)
	if err != nil {
		t.Fatal(err)
	}
	query := url.Values{FromParam: {string(position)}, UnwrittenParam: {strconv.FormatInt(unwritten, 10)}}
	if final {
		query.Set(FinalParam, "true")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/default_pod_uid/main?"+query.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return &client{t: t, body: answer.Body, reader: bufio.NewReader(answer.Body), out: map[Kind]*bytes.Buffer{KindStdout: {}, KindStderr: {}}}
}

// next receives one frame and returns its kind.
func (c *client) next() Kind {
	c.t.Helper()
	frame, err := ReadFrame(c.reader)
	if err != nil {
		c.t.Fatalf("after %q: %v", c.out[KindStdout], err)
	}
	switch frame.Kind {
	case KindStdout, KindStderr:
		c.out[frame.Kind].Write(frame.Data)
	case KindPosition:
		c.at = Progress{}
		err = json.Unmarshal(frame.Data, &c.at)
	case KindLoss:
		var lost LostPart
		err = json.Unmarshal(frame.Data, &lost)
		c.losses, c.causes = append(c.losses, lost.Loss), append(c.causes, lost.Cause)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return frame.Kind
}

// until reads on until the standard output ends with text.
func (c *client) until(text string) {
	c.t.Helper()
	for kind := Kind(0); kind != KindPosition || !strings.HasSuffix(c.out[KindStdout].String(), text); kind = c.next() {
	}
}

// toEnd reads on until the log is complete, and compares its output.
func (c *client) toEnd(want string) {
	c.t.Helper()
	for c.next() != KindEnd {
	}
	if got := c.out[KindStdout].String(); got != want {
		c.t.Errorf("got %q, want %q", got, want)
	}
	if _, err := ReadFrame(c.reader); !errors.Is(err, io.EOF) {
		c.t.Errorf("after the end: %v", err)
	}
}

func TestLogIsFollowedToItsEnd(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	_, server := startWatcher(t, r.root)
	r.open(0)
	r.write("stdout F one", "stderr F problem", "stdout P tw", "stdout P o")
	c := connect(t, server, Position{}, false)
	c.until("two")
	r.write("stdout F ", "stdout F three")
	c.until("three\n")
	if got := c.out[KindStderr].String(); got != "problem\n" {
		t.Errorf("standard error is %q", got)
	}
	r.write("stdout P last")
	r.close()
	c = connect(t, server, c.at.Position, true)
	c.toEnd("last")
}

// A pod is deleted with its log while its reader is behind.
func TestDeletedLogIsReadToItsEnd(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	_, server := startWatcher(t, r.root)
	r.open(0)
	r.write("stdout F one")
	connect(t, server, Position{}, false).until("one\n")
	r.write("stdout F two")
	if err := os.RemoveAll(filepath.Dir(r.dir)); err != nil {
		t.Fatal(err)
	}
	c := connect(t, server, Position{}, true)
	c.until("two\n") // the runtime still has it open
	r.write("stdout F three")
	r.close()
	c.toEnd("one\ntwo\nthree\n")
}

func TestRotationsAndRestartsLoseNothing(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	w, server := startWatcher(t, r.root)
	r.open(0)
	r.write("stdout F 1")
	c := connect(t, server, Position{}, false)
	c.until("1\n")
	middle := c.at.Position
	// The reader is behind while the kubelet rotates and deletes.
	for i := range 3 {
		before := r.file
		r.file = nil
		r.rotate(i)
		r.open(0)
		now := r.file
		r.write(fmt.Sprintf("stdout F %d in the new file", i))
		// The runtime's last words to the old file come late.
		r.file = before
		r.write(fmt.Sprintf("stdout F %d in the old file", i))
		before.Close()
		r.file = now
	}
	awaitSegments(t, w, 4)
	for i := range 2 {
		if err := os.Remove(r.path(fmt.Sprintf("0.log.20260101-%06d", i))); err != nil {
			t.Fatal(err)
		}
	}
	r.open(1)
	r.write("stdout F restarted")
	c.until("restarted\n")
	want := "1\n"
	for i := range 3 {
		want += fmt.Sprintf("%d in the old file\n%d in the new file\n", i, i)
	}
	if got := c.out[KindStdout].String(); got != want+"restarted\n" {
		t.Errorf("got %q", got)
	}
	r.close()
	// Another client goes on in the middle, or begins.
	connect(t, server, middle, true).toEnd(want[2:] + "restarted\n")
	connect(t, server, Position{}, true).toEnd(want + "restarted\n")
}

// compress does to a rotated file what the kubelet does before the next rotation.
func (r *runtime) compress(number int) {
	r.t.Helper()
	name := r.path(fmt.Sprintf("0.log.20260101-%06d", number))
	content, err := os.ReadFile(name)
	if err != nil {
		r.t.Fatal(err)
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	_, err = writer.Write(content)
	if err := errors.Join(err, writer.Close(), os.WriteFile(name+".gz", packed.Bytes(), 0o640), os.Remove(name)); err != nil {
		r.t.Fatal(err)
	}
}

// A role that was started again finds rotated files that are already compressed.
func TestCompressedLogsAreReadAfterARestart(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F one", "stdout F two")
	before, server := startWatcher(t, r.root)
	c := connect(t, server, Position{}, false)
	c.until("two\n")
	middle := c.at.Position
	r.write("stdout F three")
	for i, text := range []string{"four", "five", "six"} {
		r.rotate(i)
		r.open(0)
		r.write("stdout F " + text)
		awaitSegments(t, before, i+2) // the kubelet leaves at least 10 s between rotations
	}
	r.compress(0)
	r.compress(1)
	c.until("six\n")
	r.close()
	awaitSegments(t, before, 4) // the compressed files are not taken for further ones

	after, server := startWatcher(t, r.root)
	awaitSegments(t, after, 4)
	connect(t, server, middle, true).toEnd("three\nfour\nfive\nsix\n")
	// A client that begins later gets the same, even after the pod is deleted.
	if err := os.RemoveAll(filepath.Dir(r.dir)); err != nil {
		t.Fatal(err)
	}
	connect(t, server, Position{}, true).toEnd("one\ntwo\nthree\nfour\nfive\nsix\n")
}

func TestCompressedLogTooLargeForSpoolIsCounted(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F one", "stdout F two")
	r.rotate(0)
	r.compress(0)
	r.open(0)
	r.write("stdout F kept")
	r.close()
	w, server := startWatcher(t, r.root)
	if err := os.Remove(r.path("0.log.20260101-000000.gz")); err != nil {
		t.Fatal(err)
	}
	w.Spool = 0
	w.prune(time.Now())
	c := connect(t, server, Position{}, true)
	c.toEnd("kept\n")
	if want := []Loss{{Lines: 2, Bytes: 8}}; !slices.Equal(c.losses, want) {
		t.Errorf("lost %v, want %v", c.losses, want)
	}
}

func awaitSegments(t *testing.T, w *Watcher, count int) {
	t.Helper()
	awaitTrue(t, w, fmt.Sprintf("%d files are open", count), func(c *container) bool { return len(c.segments) == count })
}

func awaitTrue(t *testing.T, w *Watcher, what string, is func(*container) bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		c := w.container("default_pod_uid/main")
		c.mu.Lock()
		found := is(c)
		c.mu.Unlock()
		if found {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("wait until %s: in vain", what)
		}
	}
}

func TestSpoolOverflowIsCounted(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	w, server := startWatcher(t, r.root)
	r.open(0)
	r.write("stdout F one", "stdout F two", "stderr F three")
	c := connect(t, server, Position{}, false)
	c.until("two\n")
	// Records after the last reading get lost.
	at := c.at.Position
	c.body.Close()
	awaitTrue(t, w, "the client is gone", func(c *container) bool { return c.readers == 0 })
	r.write("stdout F lost", "stderr P and ", "stderr F lost")
	r.rotate(0)
	r.open(0)
	r.write("stdout F kept")
	awaitSegments(t, w, 2)
	if err := os.Remove(r.path("0.log.20260101-000000")); err != nil {
		t.Fatal(err)
	}
	w.Spool = 0
	w.prune(time.Now())
	r.close()
	c = connect(t, server, at, true)
	for c.next() != KindPosition {
	}
	after := c.at.Position
	c.toEnd("kept\n")
	if want := []Loss{{Lines: 2, Bytes: 14}}; !slices.Equal(c.losses, want) {
		t.Errorf("lost %v, want %v", c.losses, want)
	}
	// A client whose connection breaks after the loss is sent no other.
	c = connect(t, server, after, true)
	c.toEnd("kept\n")
	if len(c.losses) > 0 {
		t.Errorf("lost again: %v", c.losses)
	}
}

// A file is dropped while a slow reader is sent its records. They arrive, so they
// are not lost.
func TestRecordsOnTheirWayAreNotLost(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F one", "stdout F two")
	r.close()
	w, _ := startWatcher(t, r.root)
	awaitSegments(t, w, 1)
	from, to := io.Pipe()
	done := make(chan error, 1)
	go func() {
		reader := reader{c: w.container("default_pod_uid/main"), out: to, buffers: &w.buffers, final: true, flush: func() error { return nil }}
		err := reader.run(t.Context(), Position{})
		to.Close()
		done <- err
	}()
	var head [5]byte // of the frame with both lines, whose rest the reader has to send
	if _, err := io.ReadFull(from, head[:]); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(r.dir)); err != nil {
		t.Fatal(err)
	}
	w.Spool = 0
	w.prune(time.Now())
	rest := io.MultiReader(bytes.NewReader(head[:]), from)
	c := &client{t: t, reader: bufio.NewReader(rest), out: map[Kind]*bytes.Buffer{KindStdout: {}, KindStderr: {}}}
	c.toEnd("one\ntwo\n")
	if len(c.losses) > 0 {
		t.Errorf("lost %v", c.losses)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestUnreadFilesAreKeptForAWhile(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	w, server := startWatcher(t, r.root)
	r.open(0)
	r.write("stdout F one")
	r.close()
	awaitSegments(t, w, 1)
	if err := os.RemoveAll(filepath.Dir(r.dir)); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	w.prune(now)
	connect(t, server, Position{}, true).toEnd("one\n")
	w.prune(now.Add(3 * w.Grace))
	c := connect(t, server, Position{}, true) // one that lacks what was on its way
	c.toEnd("")
	if want := []Loss{{}}; !slices.Equal(c.losses, want) {
		t.Errorf("lost %v, want %v", c.losses, want)
	}
	w.container("default_pod_uid/main").scan()
	w.prune(now.Add(30 * w.Grace))
	if len(w.containers) != 0 {
		t.Errorf("%d containers are remembered", len(w.containers))
	}
}

// Following takes an inotify instance for the node, not one for each log: a user
// has 128 of them.
func TestManyLogsTakeOneInotifyInstance(t *testing.T) {
	root := t.TempDir()
	before := inotifyInstances(t)
	_, server := startWatcher(t, root)
	for i := range 300 {
		dir := filepath.Join(root, fmt.Sprintf("default_pod%d_uid", i), "main")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "0.log"), []byte("2026-01-01T00:00:00Z stdout F one\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		answer, err := http.Get(fmt.Sprintf("%s/default_pod%d_uid/main", server.URL, i))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if frame, err := ReadFrame(bufio.NewReader(answer.Body)); err != nil || string(frame.Data) != "one\n" {
			t.Fatalf("log %d: %q, %v", i, frame.Data, err)
		}
	}
	if got := inotifyInstances(t) - before; got != 1 {
		t.Errorf("%d inotify instances", got)
	}
}

func inotifyInstances(t *testing.T) int {
	t.Helper()
	return descriptors(t, func(target string) bool { return target == "anon_inode:inotify" })
}

// descriptors counts the open files of this process that match.
func descriptors(t *testing.T, is func(target string) bool) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, entry := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + entry.Name()); is(target) {
			count++
		}
	}
	return count
}

// A Job of many pods takes descriptors and watches for the pods that exist, and
// for those deleted within the grace.
func TestDescriptorsAreBoundedByPods(t *testing.T) {
	const rounds, atOnce = 4, 250
	root := t.TempDir()
	w, server := startWatcher(t, root)
	for round := range rounds {
		for i := range atOnce {
			dir := filepath.Join(root, fmt.Sprintf("default_pod%d_uid%d", i, round), "main")
			err := os.MkdirAll(dir, 0o755)
			if err := errors.Join(err, os.WriteFile(filepath.Join(dir, "0.log"), []byte("2026-01-01T00:00:00Z stdout F one\n"), 0o644)); err != nil {
				t.Fatal(err)
			}
			answer, err := http.Get(fmt.Sprintf("%s/default_pod%d_uid%d/main?final=true", server.URL, i, round))
			if err != nil {
				t.Fatal(err)
			}
			if content, err := io.ReadAll(answer.Body); err != nil || !bytes.Contains(content, []byte("one\n")) {
				t.Fatalf("log %d: %q, %v", i, content, err)
			}
			answer.Body.Close()
		}
		logs := descriptors(t, func(target string) bool { return strings.HasPrefix(target, root) && strings.Contains(target, ".log") })
		w.mu.Lock()
		watches := len(w.watched)
		w.mu.Unlock()
		if logs > atOnce || watches > 1+2*atOnce {
			t.Errorf("in round %d, %d pods take %d descriptors and %d watches", round, atOnce, logs, watches)
		}
		for i := range atOnce {
			if err := os.RemoveAll(filepath.Join(root, fmt.Sprintf("default_pod%d_uid%d", i, round))); err != nil {
				t.Fatal(err)
			}
		}
		w.prune(time.Now().Add(2 * w.Grace)) // an open file keeps the watch of its directory
		for deadline := time.Now().Add(20 * time.Second); watches > 1 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			w.mu.Lock()
			watches = len(w.watched)
			w.mu.Unlock()
		}
	}
}

func TestUnknownLog(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	if err := os.RemoveAll(filepath.Dir(r.dir)); err != nil {
		t.Fatal(err)
	}
	_, server := startWatcher(t, r.root)
	if kind := connect(t, server, Position{}, true).next(); kind != KindUnknown {
		t.Errorf("got frame %c", kind)
	}
}
