package crash

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/node/sandbox"
)

// Arg starts this program again as the reporter. main calls Main then.
const Arg = "crash-reporter"

// Names of the reporter's files.
const (
	fdOutput = "output" // what Go's runtime writes; end of file is the end of the process
	fdNotes  = "notes"  // carries the notes after the first one
)

const (
	// stackBytes bounds the stack that is printed where none is kept.
	stackBytes = 4 << 10
	// searchedBytes bounds the output that is searched for a panic.
	searchedBytes = 64 << 10
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

// report reads the output until the end of the process. If it is that of a panic,
// report notifies the user as soon as the first stack has come. The process waits
// meanwhile, because the pipe is small: once it has ended, Slurm may end its step
// and this process with it.
func report(output io.Reader, stderr io.Writer, lastNote func() Note) error {
	var text []byte
	var keep *os.File
	printed := false
	for buffer := make([]byte, pipeBytes); ; {
		n, err := output.Read(buffer)
		if !printed {
			text = append(text, buffer[:n]...)
			var reason, stack []byte
			if reason, stack, printed = findPanic(text, err != nil); printed {
				note := lastNote()
				keep = note.open()
				printCrash(stderr, note, keep != nil, reason, stack)
				buffer, n = append(buffer[:0], text...), len(text)
			}
			text = text[max(0, len(text)-searchedBytes):]
		}
		if keep != nil {
			if _, err := keep.Write(buffer[:n]); err != nil {
				return errors.Join(fmt.Errorf("keep the stacks of a crash: %w", err), keep.Close())
			}
		}
		switch {
		case err == nil:
		case keep != nil:
			return keep.Close()
		default:
			return nil
		}
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

// open returns the file for the stacks, or nil.
func (n Note) open() *os.File {
	if n.Keep == "" {
		return nil
	}
	file, err := os.OpenFile(n.Keep, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil // the stack is printed instead
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
