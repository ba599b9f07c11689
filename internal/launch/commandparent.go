package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
)

// CommandParentArg starts this program again as the parent of the user's command.
// main calls CommandParent then.
const CommandParentArg = "command-keeper"

// Descriptors of the command's parent.
const (
	commandEndFD    = 3 // receives the time for the command to end; end of file is the order to end
	commandResultFD = 4 // carries a commandResult
	commandConfigFD = 5 // memory file with a commandConfig
)

const (
	// orphanGrace is the time to end for a command whose supervisor died, and for
	// processes that a command left in the background.
	orphanGrace = time.Second
	// killPoll is the interval between two attempts to kill the remaining
	// processes, which may have started others.
	killPoll = 20 * time.Millisecond
	// killLimit bounds these attempts. Only a process that hangs in the kernel
	// lasts so long, and berth cannot end it.
	killLimit = 10 * time.Second
)

// commandConfig is the command to run. Its environment is that of its parent.
type commandConfig struct {
	Path string
	Args []string
}

// commandResult is the exit code of the command, or the reason why it did not
// start.
type commandResult struct {
	Code  int
	Error string
}

// commandParent is the supervisor's view of the process between it and the user's
// command. Whatever the command leaves behind becomes a child of that process. So
// it can be distinguished from the parts of the cluster, and it ends with the run
// even if the supervisor is killed.
type commandParent struct {
	process *exec.Cmd
	order   *os.File
	result  chan commandResult
	// ended is closed when the command has ended.
	ended chan struct{}
}

// startCommand starts the command's parent, which starts the command.
func startCommand(config commandConfig, env []string, stdin io.Reader, stdout, stderr io.Writer) (*commandParent, error) {
	encoded, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	configFile, err := linux.MemoryFile("command", encoded)
	if err != nil {
		return nil, err
	}
	defer configFile.Close()
	orderReader, orderWriter, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer orderReader.Close()
	resultReader, resultWriter, err := os.Pipe()
	if err != nil {
		orderWriter.Close()
		return nil, fmt.Errorf("make pipe: %w", err)
	}
	defer resultWriter.Close()
	process := exec.Command("/proc/self/exe", CommandParentArg)
	process.Args[0] = "berth"
	process.Env = env
	process.Stdin, process.Stdout, process.Stderr = stdin, stdout, stderr
	// Go's pipes would stay open as long as any process has them.
	process.WaitDelay = orphanGrace
	process.ExtraFiles = []*os.File{orderReader, resultWriter, configFile}
	if err := process.Start(); err != nil {
		orderWriter.Close()
		resultReader.Close()
		return nil, fmt.Errorf("start the keeper of the command: %w", err)
	}
	k := &commandParent{process: process, order: orderWriter, result: make(chan commandResult, 1), ended: make(chan struct{})}
	go func() {
		defer resultReader.Close()
		var result commandResult
		if err := json.NewDecoder(resultReader).Decode(&result); err != nil {
			result.Error = "the process that watched it was killed"
		}
		k.result <- result
		close(k.ended)
	}()
	return k, nil
}

// end asks the command and its descendants to end within grace. Further calls
// have no effect.
func (p *commandParent) end(grace time.Duration) {
	_, _ = fmt.Fprintln(p.order, grace)
	p.order.Close()
}

// wait ends the command and returns when all its descendants have ended.
func (p *commandParent) wait() {
	p.end(orphanGrace)
	linux.Resume(p.process.Process.Pid)
	_ = p.process.Wait() // if it was killed, the supervisor does its work
}

// CommandParent is the main function of the command's parent. It returns the exit
// status.
func CommandParent() int {
	// The supervisor orders the end. Ignored signals stay ignored, for the
	// command.
	notifyUnlessIgnored(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	// The parent-death signal of the command is tied to the thread that forked.
	runtime.LockOSThread()
	for _, fd := range []int{commandEndFD, commandResultFD, commandConfigFD} {
		unix.CloseOnExec(fd)
	}
	resultFile := os.NewFile(commandResultFD, "result")
	report := func(result commandResult) {
		_ = json.NewEncoder(resultFile).Encode(result) // if the supervisor is gone, nobody needs the result
	}
	configFile := os.NewFile(commandConfigFD, "config")
	var config commandConfig
	err := json.NewDecoder(io.NewSectionReader(configFile, 0, 1<<30)).Decode(&config)
	configFile.Close()
	if err == nil {
		err = linux.BecomeSubreaper()
	}
	var command *os.Process
	if err == nil {
		command, err = os.StartProcess(config.Path, config.Args, &os.ProcAttr{
			Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
			// The supervisor and this process may be killed at the same time.
			Sys: &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL},
		})
	}
	if err != nil {
		report(commandResult{Error: err.Error()})
		return 1
	}
	ended, none := make(chan unix.WaitStatus, 1), make(chan struct{})
	go reapAll(command.Pid, ended, none)
	ordered := make(chan time.Duration, 1)
	go func() { ordered <- readOrder(os.NewFile(commandEndFD, "order")) }()
	grace := orphanGrace
	select {
	case status := <-ended:
		report(commandResult{Code: statusCode(status)})
	case grace = <-ordered:
	}
	endDescendants(grace, none)
	select {
	case status := <-ended:
		report(commandResult{Code: statusCode(status)})
	default:
	}
	return 0
}

// readOrder returns when the supervisor wants the command to end, or is gone. It
// returns the time for that.
func readOrder(order *os.File) time.Duration {
	content, _ := io.ReadAll(order)
	var text string
	if _, err := fmt.Sscan(string(content), &text); err != nil {
		return orphanGrace
	}
	grace, err := time.ParseDuration(text)
	if err != nil {
		return orphanGrace
	}
	return grace
}

// reapAll waits for every child. A subreaper without children has no descendants.
// Then reapAll closes none.
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
// that have not ended within grace. none is closed when no descendant is left.
func endDescendants(grace time.Duration, none <-chan struct{}) {
	signalDescendants(unix.SIGTERM)
	signalDescendants(unix.SIGCONT) // a stopped process cannot act on SIGTERM
	select {
	case <-none:
		return
	case <-time.After(grace):
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

// endOrphans ends processes that became children of the supervisor because their
// parent was killed. Call it after all other children have been waited for.
func endOrphans() {
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid == 0 || err == nil {
		none := make(chan struct{})
		go reapAll(0, nil, none)
		endDescendants(0, none)
	}
}

// statusCode returns a process's exit code as a shell does: 128 plus the signal
// for a killed process.
func statusCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return exitcode.Signal + int(status.Signal())
	}
	return status.ExitStatus()
}
