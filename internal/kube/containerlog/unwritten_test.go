package containerlog

import (
	"bufio"
	"bytes"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// setUnwritten sets the number of bytes that the runtime could not write.
func setUnwritten(t *testing.T, w *Watcher, bytes int64) {
	t.Helper()
	path := filepath.Join(w.Unwritten, "default_pod_uid", "main")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			file, err = os.Create(path)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
}

func startCountingWatcher(t *testing.T, root string) (*Watcher, *httptest.Server) {
	t.Helper()
	w, server := startWatcher(t, root)
	w.Unwritten = t.TempDir()
	return w, server
}

// A client receives the count of unwritten output before the log ends, also of a
// log that holds nothing. A further connection continues where the one before it ended.
func TestUnwrittenOutputIsReported(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	w, server := startCountingWatcher(t, r.root)
	r.open(0)
	setUnwritten(t, w, 5)
	c := connect(t, server, Position{}, false)
	for c.next() != KindPosition {
	}
	if c.at != (Progress{Unwritten: 5}) {
		t.Errorf("an empty log: %+v", c.at)
	}
	r.write("stdout F one")
	c.until("one\n")
	between := c.at
	if between.Unwritten != 5 || between.Segment == "" {
		t.Errorf("after a line: %+v", between)
	}
	setUnwritten(t, w, 12)
	r.open(1)
	r.write("stdout F two")
	r.close()
	c = connectKnowing(t, server, between.Position, 5, true)
	c.toEnd("two\n")
	if c.at.Unwritten != 12 || c.at.Generation != 1 {
		t.Errorf("at the end: %+v", c.at)
	}
	// A client that knows the count receives nothing.
	end := c.at
	c = connectKnowing(t, server, end.Position, end.Unwritten, true)
	c.toEnd("")
	if c.at != (Progress{}) {
		t.Errorf("sent again: %+v", c.at)
	}
	// A loss after the last line keeps the position.
	setUnwritten(t, w, 20)
	c = connectKnowing(t, server, end.Position, end.Unwritten, true)
	c.toEnd("")
	if c.at.Position != end.Position || c.at.Unwritten != 20 {
		t.Errorf("after the last line: %+v, want %+v", c.at, end.Position)
	}
}

// Between two files, the position stays at the end of the first.
func TestUnwrittenOutputOfADroppedFileKeepsThePosition(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	w, server := startCountingWatcher(t, r.root)
	r.open(0)
	r.write("stdout F one")
	r.close()
	c := connect(t, server, Position{}, false)
	c.until("one\n")
	end := c.at.Position
	if err := os.RemoveAll(filepath.Dir(r.dir)); err != nil {
		t.Fatal(err)
	}
	w.Spool = 0
	w.prune(time.Now())
	var out bytes.Buffer
	flushes := 0
	reader := reader{c: w.container("default_pod_uid/main"), out: &out, buffers: &w.buffers, final: true, unwrittenFile: filepath.Join(w.Unwritten, "default_pod_uid/main"), flush: func() error {
		if flushes++; flushes == 2 { // the first file is behind
			setUnwritten(t, w, 5)
		}
		return nil
	}}
	if err := reader.run(t.Context(), end); err != nil {
		t.Fatal(err)
	}
	c = &client{t: t, reader: bufio.NewReader(&out), out: c.out}
	c.toEnd("one\n")
	if want := (Progress{Position: end, Unwritten: 5}); c.at != want {
		t.Errorf("got %+v, want %+v", c.at, want)
	}
}
