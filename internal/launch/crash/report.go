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

// Arg starts the reporter. The main function of berth-sandbox calls Main then.
const Arg = "crash-reporter"

// Names of the reporter's files.
const (
	fdOutput = "output" // what Go's runtime writes; end of file is the end of the process
	fdNotes  = "notes"  // carries the notes after the first one
)

const (
	// stackBytes bounds the size of the stack that is printed if no file keeps it.
	stackBytes = 4 << 10
	// searchedBytes bounds the output that is searched for a panic.
	searchedBytes = 64 << 10
	// readerWait bounds how long the report holds up the end of the process that
	// has crashed, if nobody reads standard error.
	readerWait = 5 * time.Second
)

// Main runs the reporter, and returns the exit status.
func Main() int {
	sandbox.OutliveSignals() // it ends after the process that it reports on
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
			if n <= 0 { // the process may be there, and write no more notes
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

// report reads the output until the end of the process. If it finds a panic, it keeps
// the stacks and notifies the user as soon as the first stack has come. The process that
// panics waits meanwhile, because the pipe is small: once it has ended, Slurm may end its
// step and this process with it. It waits for readerWait at most. report returns when
// the reader of standard error has the sentence or is gone.
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
	_, _ = io.Copy(io.Discard, output) // or the process would wait for ever
	<-told
	return err
}

// awaitPanic reads until the first stack of a panic is complete, and also returns the
// output that it was found in. It finds none if the process ends without a panic.
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

// findPanic returns the first line and the first stack of a panic, once the stack
// is complete.
func findPanic(text []byte, ended bool) (reason, stack []byte, found bool) {
	reason, stack, found = bytes.Cut(text, []byte("\ngoroutine "))
	if !found {
		return nil, nil, false
	}
	reason, _, _ = bytes.Cut(bytes.TrimSpace(reason), []byte("\n"))
	stack, _, complete := bytes.Cut(stack, []byte("\n\n"))
	return reason, stack[:min(len(stack), stackBytes)], complete || ended || len(stack) >= stackBytes
}

// open creates the file for the stacks and writes text, the beginning, to it. It returns
// nil if there is no such file, or if it cannot be written.
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

func printCrash(stderr io.Writer, note Note, kept bool, reason, stack []byte) {
	remedy := "keep what follows, and report it"
	if kept {
		remedy = "report it with " + note.Keep
	}
	said := fmt.Sprintf("berth: %s has crashed (%s)%s; %s\n", note.Whose, reason, note.Lost, remedy)
	if !kept {
		for line := range strings.Lines("goroutine " + string(stack)) {
			said += "berth:   " + strings.TrimRight(line, "\n") + "\n"
		}
	}
	_, _ = io.WriteString(stderr, said) // there is nobody else to notify
}
