package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/node/sandbox"
)

// Arg is the argument of berth-sandbox that starts the reporter. main then calls Main.
const Arg = "crash-reporter"

// Names of the reporter's files.
const (
	fdOutput = "output" // the output of Go's runtime; ends with the process
	fdNotes  = "notes"  // carries the notes after the first one
)

const (
	// stackBytes bounds the size of the stack that is printed if no file keeps it.
	stackBytes = 4 << 10
	// searchedBytes bounds the output that is searched for a panic.
	searchedBytes = 64 << 10
	// readerWait is the longest delay of the end of the crashed process if nobody reads
	// standard error.
	readerWait = 5 * time.Second
)

// Main runs the reporter, and returns the exit status.
func Main() int {
	sandbox.OutliveSignals() // the reporter ends after the other process
	var first Note
	files, err := linux.ReceiveFiles(&first, fdOutput, fdNotes)
	if err == nil {
		err = report(files[fdOutput], os.Stderr, func() Note { return lastNote(first, files[fdNotes]) })
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth:", err)
		return 1
	}
	return 0
}

// lastNote returns the newest note in the pipe, or note if there is none.
func lastNote(note Note, notes *os.File) Note {
	pipe, err := notes.SyscallConn()
	if err != nil {
		return note
	}
	var all []byte
	_ = pipe.Read(func(fd uintptr) bool {
		for buffer := make([]byte, 4096); ; {
			n, err := unix.Read(int(fd), buffer)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 { // end of file, or EAGAIN while the process has the pipe open
				return true
			}
			all = append(all, buffer[:n]...)
		}
	})
	for line := range bytes.Lines(all) {
		_ = json.Unmarshal(line, &note) // this program has written it
	}
	return note
}

// report reads the output of Go's runtime until the process ends. If the output contains a
// panic, report writes it to the file of the last note, and prints the sentence as soon as
// the first stack is complete. Meanwhile the crashed process waits, for readerWait at most,
// because the pipe is small: after its end, Slurm may kill the step and the reporter with
// it. report returns when the sentence was read or standard error is closed.
func report(output io.Reader, stderr io.Writer, lastNote func() Note) error {
	text, reason, stack, found := awaitPanic(output)
	if !found {
		return nil
	}
	note := lastNote()
	keep := note.open(text)
	told := make(chan struct{})
	go func() {
		defer close(told)
		printCrash(stderr, note, keep != nil, reason, stack)
	}()
	select {
	case <-told:
	case <-time.After(readerWait):
	}
	var err error
	if keep != nil {
		_, err = io.Copy(keep, output)
		if err = errors.Join(err, keep.Close()); err != nil {
			err = fmt.Errorf("keep the stacks of a crash: %w", err)
		}
	}
	_, _ = io.Copy(io.Discard, output) // otherwise the process would wait forever
	<-told
	return err
}

// awaitPanic reads the output until the first stack of a panic is complete. It returns the
// recent output, and the reason and stack in it. found is false if the process ends without
// a panic.
func awaitPanic(output io.Reader) (text, reason, stack []byte, found bool) {
	for buffer := make([]byte, pipeBytes); ; {
		n, err := output.Read(buffer)
		text = append(text, buffer[:n]...)
		if reason, stack, found := findPanic(text, err != nil); found {
			return text, reason, stack, true
		}
		if err != nil {
			return nil, nil, nil, false
		}
		text = text[max(0, len(text)-searchedBytes):]
	}
}

// findPanic returns the first line and the first stack of a panic in text. found is true
// once the stack is complete, has stackBytes, or cannot grow because the output has ended.
func findPanic(text []byte, ended bool) (reason, stack []byte, found bool) {
	reason, stack, found = bytes.Cut(text, []byte("\ngoroutine "))
	if !found {
		return nil, nil, false
	}
	reason, _, _ = bytes.Cut(bytes.TrimSpace(reason), []byte("\n"))
	stack, _, complete := bytes.Cut(stack, []byte("\n\n"))
	return reason, stack[:min(len(stack), stackBytes)], complete || ended || len(stack) >= stackBytes
}

// open creates the file for the stacks and writes their beginning, text, to it. It returns
// nil if the note names no file, or if the file cannot be written.
func (n Note) open(text []byte) *os.File {
	if n.Keep == "" {
		return nil
	}
	file, err := os.OpenFile(n.Keep, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil // the stack is printed instead
	}
	if _, err := file.Write(text); err != nil {
		file.Close()
		return nil
	}
	return file
}

// printCrash prints the report: one sentence, and the first stack unless a file keeps it.
func printCrash(stderr io.Writer, note Note, kept bool, reason, stack []byte) {
	remedy := "keep what follows, and report it"
	if kept {
		remedy = "report it with " + note.Keep
	}
	said := fmt.Sprintf("berth: %s has crashed (%s)%s; %s\n", note.Process, reason, note.Lost, remedy)
	if !kept {
		for line := range strings.Lines("goroutine " + string(stack)) {
			said += "berth:   " + strings.TrimRight(line, "\n") + "\n"
		}
	}
	_, _ = io.WriteString(stderr, said) // there is nobody else to notify
}
