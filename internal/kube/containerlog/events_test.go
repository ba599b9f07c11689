package containerlog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel makes an event for a write only while a reader waits for one. Events
// for all writes would slow down a container that writes many lines.
func TestWriteCausesEventOnlyForWaitingReader(t *testing.T) {
	root := t.TempDir()
	log := newRuntime(t, root)
	log.open(0)
	log.write("stdout F first")
	w, _ := startWatcher(t, root)
	// A pipe that holds nothing: the reader goes on when the test has read.
	from, to := io.Pipe()
	client := &client{t: t, reader: bufio.NewReaderSize(from, 16), out: map[Kind]*bytes.Buffer{KindStdout: {}, KindStderr: {}}}
	r := reader{c: w.container("default_pod_uid/main"), out: to, buffers: &w.buffers, flush: func() error { return nil }}
	stop := errors.New("the test is over")
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error)
	go func() { done <- r.run(ctx, Position{}) }()

	if writesWatched(t, w) {
		t.Error("events for writes, though the reader has output to send")
	}
	want := "first\n"
	for i := range 3 {
		client.until(want)
		awaitWritesWatched(t, w, true)
		text := fmt.Sprintf("line %d\n", i)
		log.write("stdout F " + strings.TrimSpace(text))
		awaitWritesWatched(t, w, false)
		for range 100 {
			log.write("stdout F more")
		}
		if writesWatched(t, w) {
			t.Error("events for writes again, though the reader has output to send")
		}
		want += text + strings.Repeat("more\n", 100)
	}
	client.until(want)
	if got := client.out[KindStdout].String(); got != want {
		t.Errorf("got %q", got)
	}
	cancel(stop)
	if err := <-done; !errors.Is(err, stop) {
		t.Error(err)
	}
}

func awaitWritesWatched(t *testing.T, w *Watcher, want bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); writesWatched(t, w) != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("wait until writes are watched (%v): in vain", want)
		}
	}
}

// writesWatched reports whether the kernel makes events for writes in some
// directory.
func writesWatched(t *testing.T, w *Watcher) bool {
	t.Helper()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", w.inotify.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(info)) {
		_, rest, found := strings.Cut(line, " mask:")
		if !found {
			continue
		}
		mask, err := strconv.ParseUint(strings.Fields(rest)[0], 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		if mask&unix.IN_MODIFY != 0 {
			return true
		}
	}
	return false
}

// A container's directory may be deleted and made again while a reader waits.
func TestRecreatedDirectoryIsFollowed(t *testing.T) {
	root := t.TempDir()
	log := newRuntime(t, root)
	log.open(0)
	log.write("stdout F first")
	w, server := startWatcher(t, root)
	client := connect(t, server, Position{}, false)
	client.until("first\n")
	awaitWritesWatched(t, w, true)
	log.close()
	if err := os.RemoveAll(log.dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(log.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log.open(1)
	log.write("stdout F second")
	client.until("first\nsecond\n")
	awaitWritesWatched(t, w, true)
	log.write("stdout F third")
	client.until("first\nsecond\nthird\n")
}

// The reader already waits for a write, so only the new name in the parent tells that
// there is another directory. The open log keeps the inode of the deleted one, and its
// watch, alive.
func TestDirectoryRecreatedWhileReaderWaitsIsFollowed(t *testing.T) {
	for name, removed := range map[string]func(dir string) string{
		"container": func(dir string) string { return dir },
		"pod":       filepath.Dir,
	} {
		t.Run(name, func(t *testing.T) {
			log := newRuntime(t, t.TempDir())
			log.open(0)
			log.write("stdout F first")
			log.close() // nothing that the runtime does later ends the wait for a write
			w, server := startWatcher(t, log.root)
			client := connect(t, server, Position{}, false)
			client.until("first\n")
			awaitWritesWatched(t, w, true)
			c := w.container("default_pod_uid/main")
			c.mu.Lock()
			changed := c.changed
			c.mu.Unlock()
			if err := os.Remove(log.path("0.log")); err != nil {
				t.Fatal(err)
			}
			select {
			case <-changed: // the last event of the deleted directory is handled
			case <-time.After(20 * time.Second):
				t.Fatal("no reader was woken by the removal of a log")
			}
			if err := os.RemoveAll(removed(log.dir)); err != nil {
				t.Fatal(err)
			}
			c.scan()
			if !c.gone {
				t.Error("the deleted directory counts as there")
			}
			if err := os.MkdirAll(log.dir, 0o755); err != nil {
				t.Fatal(err)
			}
			log.open(0)
			awaitTrue(t, w, "the directory is there", func(c *container) bool { return !c.gone })
			awaitSegments(t, w, 2) // the second one is empty, but the newer one
			log.write("stdout F second")
			client.until("first\nsecond\n")
			awaitWritesWatched(t, w, true)
			log.write("stdout F third")
			client.until("first\nsecond\nthird\n")
		})
	}
}
