package containerlog

import (
	"bufio"
	"bytes"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readAll reads a whole log without a server, so that it needs no descriptor.
func readAll(t *testing.T, w *Watcher) (*client, <-chan struct{}) {
	t.Helper()
	var out bytes.Buffer
	c := &client{t: t, reader: bufio.NewReader(&out), out: map[Kind]*bytes.Buffer{KindStdout: {}, KindStderr: {}}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		reader := reader{c: w.container("default_pod_uid/main"), out: &out, buffers: &w.buffers, final: true, flush: func() error { return nil }}
		if err := reader.run(t.Context(), Position{}); err != nil {
			t.Error(err)
		}
	}()
	return c, done
}

// wantLoss expects one loss of unknown size, with a cause.
func (c *client) wantLoss(cause string) {
	c.t.Helper()
	if len(c.losses) != 1 || c.losses[0] != (Loss{}) || !strings.Contains(c.causes[0], cause) {
		c.t.Errorf("lost %v because of %q, want one because of %q", c.losses, c.causes, cause)
	}
}

// A read error is not the end of a log: the reader tries again.
func TestUnreadableFileIsReadAgain(t *testing.T) {
	for _, lasts := range []bool{false, true} {
		r := newRuntime(t, t.TempDir())
		r.open(0)
		r.write("stdout F one")
		r.open(1)
		r.write("stdout F two")
		r.close()
		w, err := NewWatcher(r.root, discard)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		log := w.container("default_pod_uid/main")
		if lasts {
			log.readTimeout = 0
		}
		// The kernel refuses to read from a descriptor that is only for writing.
		unreadable, err := os.OpenFile(r.path("0.log"), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		good := log.segments[0].file
		log.segments[0].file = unreadable
		c, done := readAll(t, w)
		if !lasts {
			time.Sleep(2 * retryPeriod) // the test is of less use if the reader is slow
			log.mu.Lock()
			log.segments[0].file = good
			log.mu.Unlock()
			unreadable.Close() // or it would be a writer of the file
		}
		<-done
		if lasts {
			c.toEnd("two\n")
			c.wantLoss("bad file descriptor")
		} else if c.toEnd("one\ntwo\n"); len(c.losses) > 0 {
			t.Errorf("lost %v", c.losses)
		}
		_, _ = unreadable.Close(), good.Close()
	}
}

// A file that cannot be opened is not absent: the reader tries again.
func TestUnopenedFileIsOpenedLater(t *testing.T) {
	for _, lasts := range []bool{false, true} {
		r := newRuntime(t, t.TempDir())
		r.open(0)
		r.write("stdout F one")
		w, err := NewWatcher(r.root, discard)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		r.open(1)
		r.write("stdout F two")
		r.close()
		log := w.container("default_pod_uid/main")
		if lasts {
			log.readTimeout = 0
		}
		restore := takeDescriptors(t)
		c, done := readAll(t, w)
		if lasts {
			<-done
		} else {
			awaitTrue(t, w, "the file is not opened", func(c *container) bool { return c.blocked != nil })
		}
		restore()
		<-done
		if lasts {
			c.toEnd("one\n")
			c.wantLoss("too many open files")
		} else if c.toEnd("one\ntwo\n"); len(c.losses) > 0 {
			t.Errorf("lost %v", c.losses)
		}
	}
}

// A file that could not be opened before it was deleted is lost.
func TestFileDeletedUnopenedIsALoss(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F one")
	w, _ := startWatcher(t, r.root)
	awaitTrue(t, w, "the first file is open", func(c *container) bool { return len(c.segments) == 1 })
	r.open(1)
	r.write("stdout F two")
	r.close()
	awaitTrue(t, w, "the second file is open", func(c *container) bool { return len(c.segments) == 2 })
	aside := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(aside, []byte("2026-01-01T00:00:00Z stdout F three\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	restore := takeDescriptors(t)
	err := os.Rename(aside, r.path("2.log"))
	awaitTrue(t, w, "the file cannot be opened", func(c *container) bool { return c.blocked != nil })
	err = errors.Join(err, os.Remove(r.path("2.log")), os.Remove(r.path("1.log"))) // the last one is open
	awaitTrue(t, w, "the deletion is known", func(c *container) bool { return len(c.segments) > 2 })
	restore()
	if err != nil {
		t.Fatal(err)
	}
	c, done := readAll(t, w)
	<-done
	c.toEnd("one\ntwo\n")
	c.wantLoss("too many open files")
}

// A file may be deleted before its event is handled.
func TestFileDeletedUnseenIsALoss(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F one")
	w, err := NewWatcher(r.root, discard)
	if err != nil {
		t.Fatal(err)
	}
	r.open(1)
	r.write("stdout F two")
	r.close()
	if err := os.Remove(r.path("1.log")); err != nil {
		t.Fatal(err)
	}
	runWatcher(t, w)
	awaitTrue(t, w, "the deletion is known", func(c *container) bool { return len(c.segments) > 1 })
	c, done := readAll(t, w)
	<-done
	c.toEnd("one\n")
	c.wantLoss(errUnseen.Error())
}

// Where the kernel cannot watch directories, the number of a run tells that one before it
// was not seen.
func TestFileDeletedBetweenTwoScansIsALoss(t *testing.T) {
	for _, watched := range []bool{false, true} {
		r := newRuntime(t, t.TempDir())
		w, err := NewWatcher(r.root, discard)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		inotify := w.inotify
		defer inotify.Close()
		if !watched {
			w.inotify, w.blind = nil, true
		}
		r.open(0)
		r.write("stdout F one")
		w.scan()
		r.open(3) // the container of a run may never have started
		r.write("stdout F four")
		r.close()
		w.scan()
		c, done := readAll(t, w)
		<-done
		c.toEnd("one\nfour\n")
		if watched && len(c.losses) > 0 {
			t.Errorf("lost %v", c.losses)
		} else if !watched {
			c.wantLoss(errUnseen.Error())
		}
	}
}

// The runtime makes a file for each run, so a log without a file was deleted.
func TestLogWithoutAFileIsALoss(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		r := newRuntime(t, t.TempDir())
		if !deleted {
			r.open(0)
			r.close()
		}
		w, err := NewWatcher(r.root, discard)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		if err := os.RemoveAll(filepath.Join(r.root, "default_pod_uid")); err != nil {
			t.Fatal(err)
		}
		c, done := readAll(t, w)
		<-done
		c.toEnd("")
		if deleted {
			c.wantLoss(errUnseen.Error())
		} else if len(c.losses) > 0 {
			t.Errorf("lost %v of an empty file", c.losses)
		}
	}
}

// A log that cannot be looked for is not absent: the client has to ask again.
func TestLogIsNotUnknownWithoutDescriptors(t *testing.T) {
	w, err := NewWatcher(t.TempDir(), discard)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	if err := os.MkdirAll(filepath.Join(w.root.Name(), "default_pod_uid", "main"), 0o755); err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	restore := takeDescriptors(t)
	w.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/default_pod_uid/main", nil))
	restore()
	if answer.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d, %q", answer.Code, answer.Body)
	}
}

// takeDescriptors lets this process open no further file until restore is called.
func takeDescriptors(t *testing.T) (restore func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore = func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	return restore
}

// A compressed file that cannot be read is lost, and the files after it are read.
func TestDamagedCompressedFileIsALoss(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F one")
	r.rotate(0)
	r.compress(0)
	r.open(0)
	r.write("stdout F two")
	r.close()
	name := r.path("0.log.20260101-000000.gz")
	packed, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, damaged := range [][]byte{packed[:len(packed)/2], []byte("no gzip file")} {
		if err := os.WriteFile(name, damaged, 0o640); err != nil {
			t.Fatal(err)
		}
		w, err := NewWatcher(r.root, discard)
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		c, done := readAll(t, w)
		<-done
		c.toEnd("two\n")
		if len(c.losses) == 0 || !slices.Contains(c.losses, Loss{}) || c.causes[0] == "" {
			t.Errorf("lost %v because of %q", c.losses, c.causes)
		}
	}
}

// The kernel may give the inode of a deleted file to the next one, which is another
// file though.
func TestInodeOfACompressedFileIsUsedAgain(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	r.open(0)
	r.write("stdout F one")
	r.rotate(0)
	r.compress(0)
	w, server := startWatcher(t, r.root)
	c := connect(t, server, Position{}, false)
	c.until("one\n") // from a copy
	awaitTrue(t, w, "the copy is there", func(c *container) bool { return !c.segments[0].compressed })
	packed := r.path("0.log.20260101-000000.gz")
	if err := os.Truncate(packed, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(packed, r.path("1.log")); err != nil {
		t.Fatal(err)
	}
	r.open(1)
	r.write("stdout F two")
	c.until("one\ntwo\n")
}

// A stream goes on to the end of the log when the container ends meanwhile.
func TestStreamEndsWhenItsContainerDoes(t *testing.T) {
	r := newRuntime(t, t.TempDir())
	_, server := startWatcher(t, r.root)
	r.open(0)
	r.write("stdout F one")
	c := connect(t, server, Position{}, false)
	c.until("one\n")
	answer, err := server.Client().Get(server.URL + "/default_pod_uid/main?" + EndedParam + "=true")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	r.write("stdout F two")
	r.close()
	c.toEnd("one\ntwo\n")
}
