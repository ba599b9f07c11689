// Package crash reports a panic of this process in one sentence. No goroutine can
// recover from the panic of another one, so a second process, the reporter, waits for the
// end of this one and reads the message of Go's runtime. Panics of the roles do not belong
// to this package: their parents report them.
package crash

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime/debug"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/node/sandbox"
)

// Note describes the consequences of a crash from now on. The report is "Process has
// crashed (reason)Lost; remedy".
type Note struct {
	// Process names this process, such as "berth". Lost begins with a space or comma.
	Process, Lost string
	// Keep is the path of the file for the stacks. If it is empty, the reporter prints the
	// first stack.
	Keep string `json:",omitempty"`
}

// BeforeWorkload returns the note that applies until the workload starts.
func BeforeWorkload() Note { return Note{Process: "berth", Lost: " before it started the workload"} }

// pipeBytes is the size of the pipe to the reporter. It is the smallest that Linux allows
// (one page), and the stacks of a run are larger, so a process that panics waits for the
// reporter before it ends.
const pipeBytes = 4 << 10

// Reporter is the process that reports a panic of this one. Its methods do nothing
// on nil.
type Reporter struct {
	stderr  *os.File
	notes   *os.File
	process *exec.Cmd
	// gone ends KeepRunning. A reporter that a SIGSTOP has stopped would outlive a run that is
	// killed.
	gone    chan struct{}
	closing sync.Once
	closed  error
}

// KeepStderr gives this process another descriptor for its standard error.
// Descriptor 2, where Go's runtime reports a panic, is then free for a Reporter.
// The main function calls it before anything uses os.Stderr.
func KeepStderr() {
	if kept, err := unix.FcntlInt(2, unix.F_DUPFD_CLOEXEC, 3); err == nil {
		os.Stderr = os.NewFile(uintptr(kept), "/dev/stderr")
	}
}

// Start starts the reporter, whose input is then descriptor 2. program is the path of
// berth-sandbox. From then on, a panic ends the process with SIGABRT, because the exit
// code of an ordinary panic, 2, could be the workload's. The caller must have called
// KeepStderr.
func Start(program string, note Note) (*Reporter, error) {
	var ends [4]*os.File
	defer func() {
		for _, end := range ends {
			if end != nil {
				end.Close()
			}
		}
	}()
	for i := 0; i < len(ends); i += 2 {
		var err error
		if ends[i], ends[i+1], err = os.Pipe(); err != nil {
			return nil, fmt.Errorf("make pipe: %w", err)
		}
	}
	output := ends[1]
	if _, err := unix.FcntlInt(output.Fd(), unix.F_SETPIPE_SZ, pipeBytes); err != nil {
		return nil, fmt.Errorf("make pipe small: %w", err)
	}
	var fds linux.FDTable
	fds.Add(fdOutput, ends[0])
	fds.Add(fdNotes, ends[2])
	r := &Reporter{stderr: os.Stderr, notes: ends[3], process: exec.Command(program, Arg), gone: make(chan struct{})}
	r.process.Args[0] = "berth"
	r.process.Dir = "/"
	r.process.Env = []string{}
	r.process.Stderr = os.Stderr
	// Signals of a terminal are only for this process, not for the reporter.
	r.process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := fds.Start(r.process, note); err != nil {
		return nil, fmt.Errorf("start the process that reports crashes: %w", err)
	}
	ends[3] = nil // Close closes it
	go sandbox.KeepRunning(r.PID(), r.gone)
	if err := unix.Dup3(int(output.Fd()), 2, 0); err != nil {
		output.Close()
		return nil, errors.Join(fmt.Errorf("catch panics: %w", err), r.Close())
	}
	debug.SetTraceback("crash")
	return r, nil
}

// Note replaces the note of Start.
func (r *Reporter) Note(note Note) {
	if r != nil {
		_ = json.NewEncoder(r.notes).Encode(note) // without the reporter there is no report
	}
}

// PID returns the process ID of the reporter, or 0 for nil.
func (r *Reporter) PID() int {
	if r == nil {
		return 0
	}
	return r.process.Process.Pid
}

// Close makes descriptor 2 the standard error again, which ends the reporter, and waits
// for its end. It can be called twice. It must be called before this process executes
// another program.
func (r *Reporter) Close() error {
	if r == nil {
		return nil
	}
	r.closing.Do(func() {
		debug.SetTraceback("single")
		r.closed = errors.Join(unix.Dup3(int(r.stderr.Fd()), 2, 0), r.notes.Close())
		close(r.gone)
		linux.Resume(r.PID())
		_ = r.process.Wait() // an error means that it was killed, and so has ended
	})
	return r.closed
}
