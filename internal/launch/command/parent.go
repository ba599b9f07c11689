package command

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
)

// ParentArg starts this program again as the parent of the user's command.
// main calls ParentMain then.
const ParentArg = "command-parent"

// Names of the files of the command's parent.
const (
	fdEnd    = "end"    // carries grace periods, one a line; at end of file, OrphanGrace applies
	fdResult = "result" // carries an outcome
)

const (
	// OrphanGrace is the grace period of a command whose supervisor died, and of
	// processes that a command left in the background.
	OrphanGrace = time.Second
	// killedGrace bounds the grace period of the processes that a command leaves when
	// a signal has killed it. A shell without a trap dies of SIGTERM at once, while
	// its program saves its work.
	killedGrace = time.Hour
	// killPoll is the interval between two attempts to kill the remaining
	// processes, which may have started others.
	killPoll = 20 * time.Millisecond
	// killLimit bounds these attempts. Only a process that hangs in the kernel
	// lasts so long, and berth cannot end it.
	killLimit = 10 * time.Second
)

// program names the executable and its arguments. The environment comes from the parent.
type program struct {
	Path string
	Args []string
}

// outcome is the exit code of the command, or the reason why it did not
// start. Killed reports whether SIGKILL has ended the command.
type outcome struct {
	Code   int
	Killed bool
	Error  string
}

func outcomeOf(status unix.WaitStatus) outcome {
	return outcome{
		Code:   exitcode.OfStatus(syscall.WaitStatus(status)),
		Killed: status.Signaled() && status.Signal() == unix.SIGKILL,
	}
}

// Parent is the supervisor's view of the process between it and the user's
// command. Processes that the command leaves behind become children of that process.
// So they can be distinguished from the parts of the cluster, and they end with the
// run even if the supervisor is killed.
type Parent struct {
	process *exec.Cmd
	end     *os.File
	result  chan outcome
	ended   chan struct{}
}

// start starts the command's parent, which starts the command.
func start(started program, env []string, stdin io.Reader, stdout, stderr io.Writer) (*Parent, error) {
	endReader, endWriter, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer endReader.Close()
	resultReader, resultWriter, err := os.Pipe()
	if err != nil {
		endWriter.Close()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer resultWriter.Close()
	process := exec.Command("/proc/self/exe", ParentArg)
	process.Args[0] = "berth"
	process.Env = env
	process.Stdin, process.Stdout, process.Stderr = stdin, stdout, stderr
	// Go's pipes would stay open as long as any process has them.
	process.WaitDelay = OrphanGrace
	var fds linux.FDTable
	fds.Add(fdEnd, endReader)
	fds.Add(fdResult, resultWriter)
	if err := fds.Start(process, started); err != nil {
		endWriter.Close()
		resultReader.Close()
		return nil, fmt.Errorf("start the parent of the command: %w", err)
	}
	k := &Parent{process: process, end: endWriter, result: make(chan outcome, 1), ended: make(chan struct{})}
	go func() {
		defer resultReader.Close()
		var result outcome
		if err := json.NewDecoder(resultReader).Decode(&result); err != nil {
			result.Error = "the process that watched it was killed"
		}
		k.result <- result
		close(k.ended)
	}()
	return k, nil
}

// End asks the command and its descendants to end within grace. A further call
// can only shorten the time.
func (p *Parent) End(grace time.Duration) {
	_, _ = fmt.Fprintln(p.end, grace)
}

// Ended returns a channel that is closed when the command has ended.
func (p *Parent) Ended() <-chan struct{} { return p.ended }

// Wait ends the command within OrphanGrace and returns when its descendants have
// ended. It does nothing if p is nil.
func (p *Parent) Wait() {
	if p == nil {
		return
	}
	p.End(OrphanGrace)
	linux.Resume(p.process.Process.Pid)
	_ = p.process.Wait() // if it was killed, EndOrphans does its work
	p.end.Close()
}

// ParentMain runs the command's parent, and returns the exit status of that parent.
// The outcome of the command goes to the supervisor.
func ParentMain() int {
	// The supervisor orders the end. Ignored signals stay ignored, for the
	// command.
	linux.NotifyUnlessIgnored(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	// The parent-death signal of the command is tied to the thread that forked.
	runtime.LockOSThread()
	var config program
	files, err := linux.ReceiveFiles(&config, fdEnd, fdResult)
	if err != nil {
		fmt.Fprintln(os.Stderr, "berth:", err)
		return 1
	}
	report := func(result outcome) {
		_ = json.NewEncoder(files[fdResult]).Encode(result) // if the supervisor is gone, nobody needs the result
	}
	var command *os.Process
	if err = linux.BecomeSubreaper(); err == nil {
		command, err = os.StartProcess(config.Path, config.Args, &os.ProcAttr{
			Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
			// The supervisor and this process may be killed at the same time.
			Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
		})
	}
	if err != nil {
		report(outcome{Error: err.Error()})
		return 1
	}
	ended, none := make(chan unix.WaitStatus, 1), make(chan struct{})
	go reapAll(command.Pid, ended, none)
	ordered := make(chan time.Duration)
	go readGraces(files[fdEnd], ordered)
	grace := OrphanGrace
	select {
	case status := <-ended:
		report(outcomeOf(status))
	case grace = <-ordered:
	}
	endDescendants(grace, ordered, ended, none)
	select {
	case status := <-ended:
		report(outcomeOf(status))
	default:
	}
	return 0
}

// readGraces sends each grace period that the supervisor orders, and OrphanGrace when
// the supervisor is gone.
func readGraces(end io.Reader, ordered chan<- time.Duration) {
	for lines := bufio.NewScanner(end); lines.Scan(); {
		grace, err := time.ParseDuration(lines.Text())
		if err != nil {
			break
		}
		ordered <- grace
	}
	ordered <- OrphanGrace
}

// reapAll waits for every child, and sends the status of the command to ended. It
// closes none when no child is left: a subreaper without children has no descendants.
func reapAll(command int, ended chan<- unix.WaitStatus, none chan<- struct{}) {
	defer close(none)
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return
		case pid == command:
			ended <- status
		}
	}
}

// endDescendants asks all descendants of this process to end, and kills those
// that have not ended within grace. A further grace shortens that time. So does the
// end of the command, whose status stays in ended. none is closed when no descendant
// is left.
func endDescendants(grace time.Duration, further <-chan time.Duration, ended chan unix.WaitStatus, none <-chan struct{}) {
	signalDescendants(unix.SIGTERM)
	signalDescendants(unix.SIGCONT) // a stopped process cannot act on SIGTERM
	running := ended
	for over := time.Now().Add(grace); time.Now().Before(over); {
		shorter := OrphanGrace
		select {
		case <-none:
			return
		case status := <-running:
			ended <- status
			running = nil
			if status.Signaled() {
				shorter = killedGrace
			}
		case shorter = <-further:
		case <-time.After(time.Until(over)):
		}
		if until := time.Now().Add(shorter); until.Before(over) {
			over = until
		}
	}
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); {
		signalDescendants(unix.SIGKILL)
		select {
		case <-none:
			return
		case <-time.After(killPoll):
		}
	}
}

func signalDescendants(signal syscall.Signal) {
	descendants, err := linux.Descendants(os.Getpid())
	if err != nil {
		return // happens only without /proc, where nothing works
	}
	for _, pid := range descendants {
		_ = unix.Kill(pid, signal)
	}
}

// EndOrphans kills and reaps the descendants of the supervisor, except the process
// except. They became its children because their parent was killed. Call it when no
// other child is left to be waited for.
func EndOrphans(except int) {
	for deadline := time.Now().Add(killLimit); time.Now().Before(deadline); time.Sleep(killPoll) {
		orphans, err := linux.Descendants(os.Getpid())
		orphans = slices.DeleteFunc(orphans, func(pid int) bool { return pid == except })
		if err != nil || len(orphans) == 0 {
			return // an error happens only without /proc, where nothing works
		}
		for _, pid := range orphans {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for _, pid := range orphans {
			_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil) // it may be the child of another one
		}
	}
}
