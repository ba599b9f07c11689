package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/launch/allocation"
)

// Nobody reads standard error, as with "2>&1 | less". A signal is acted on, although
// that is reported first. Later the reader gets the message.
func TestSignalDoesNotWaitForReaderOfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, stderr := io.Pipe()
		said := newMessages(stderr)
		log := slog.New(newLines(said, verbosity{}))
		ctx, cancel := context.WithCancelCause(t.Context())
		asked := make(chan struct{})
		_, end := allocation.WithGrace(ctx, func(ctx context.Context, cause error) {
			log.Warn(cause.Error())
			close(asked)
		})
		cancel(allocation.EndedBy(syscall.SIGTERM))
		select {
		case <-asked:
		case <-time.After(time.Minute):
			t.Error("the workload was not asked to end")
		}
		go func() {
			said.finish(ctx)
			stderr.Close()
		}()
		if text, err := io.ReadAll(reader); err != nil || !strings.Contains(string(text), "ended by signal 15") {
			t.Errorf("%q, %v", text, err)
		}
		end()
	})
}

// After a signal, messages that nobody reads do not hold up the end of the program.
// Without a signal it waits for the reader.
func TestEndOfProgramWaitsForReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, stderr := io.Pipe()
		said := newMessages(stderr)
		fmt.Fprintln(said, "last words")
		ctx, signal := context.WithCancel(t.Context())
		finished := make(chan struct{})
		go func() {
			defer close(finished)
			said.finish(ctx)
		}()
		time.Sleep(time.Hour)
		select {
		case <-finished:
			t.Error("it did not wait for the reader")
		default:
		}
		signal()
		began := time.Now()
		<-finished
		if waited := time.Since(began); waited != lastWait {
			t.Errorf("it waited for %s after the signal", waited)
		}
		reader.Close()
	})
}

// Messages beyond the bound of the queue are counted, and the count stands where they
// would be.
func TestMessagesBeyondQueueAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, stderr := io.Pipe()
		said := newMessages(stderr)
		line := bytes.Repeat([]byte("x"), queuedBytes/8-1)
		line = append(line, '\n')
		began := time.Now()
		for range 8 + 3 {
			_, _ = said.Write(line)
		}
		if waited := time.Since(began); waited != writeWait {
			t.Errorf("it held the caller up for %s", waited)
		}
		lines := bufio.NewReader(reader)
		next := func() string {
			text, err := lines.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return text
		}
		next()
		fmt.Fprintln(said, "after them")
		for range 7 {
			if text := next(); text != string(line) {
				t.Errorf("%.40q...", text)
			}
		}
		if text := next(); !strings.Contains(text, "3 lines of messages are omitted") {
			t.Errorf("the count is missing: %.80q", text)
		}
		if text := next(); text != "after them\n" {
			t.Errorf("%.40q", text)
		}
		said.finish(t.Context())
		// Now that the reader reads, a caller knows when its message is written.
		written := make(chan struct{})
		go func() {
			defer close(written)
			fmt.Fprintln(said, "again")
		}()
		synctest.Wait()
		select {
		case <-written:
			t.Error("the message was not awaited")
		default:
		}
		if text := next(); text != "again\n" {
			t.Errorf("%.40q", text)
		}
		<-written
		for range 11 {
			go said.Write(line) //nolint:errcheck // it returns none
		}
		synctest.Wait()
		said.finish(cancelled())
		for range 8 {
			next()
		}
		if text := next(); !strings.Contains(text, "3 lines") {
			t.Errorf("the last count is missing: %.80q", text)
		}
	})
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// A terminal takes no output while it is stopped. The start of a cluster goes on.
func TestStoppedTerminalHoldsNothingUp(t *testing.T) {
	t.Setenv("TERM", "xterm")
	terminal := stoppedTerminal(t)
	said := newMessages(terminal)
	p := newProgress(said, verbosity{})
	if p.live == nil {
		t.Fatal("it is not taken for a terminal")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		log := slog.New(p)
		for late := false; !late; { // the steps are drawn now and then
			log.Warn("a message")
			said.mu.Lock()
			late = said.late
			said.mu.Unlock()
		}
		for _, s := range steps {
			p.step(s.name)
		}
		log.Warn("a message after all")
		p.end()
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("it waits for the terminal")
	}
}

// stoppedTerminal returns a terminal whose buffer is full.
func stoppedTerminal(t *testing.T) *os.File {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Close() })
	if err := unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	fd := int(terminal.Fd()) // blocking from here on
	if err := unix.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 512))
	}
	if !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	if err := unix.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return terminal
}
