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

// CommandParentArg is the argument with which the program is started again as the
// keeper of the user's command; main hands it to Keeper.
const CommandParentArg = "command-keeper"

// Descriptors of the keeper.
const (
	commandEndFD    = 3 // says how long the command may take to end; its end of file is the order to end
	commandResultFD = 4 // receives a keeperResult
	commandConfigFD = 5 // memory file with a keeperConfig
)

const (
	// orphanGrace is how long a command that the supervisor left by its own
	// death, and what a command left in the background, may take to end.
	orphanGrace = time.Second
	// killPoll is how often what does not end is killed again: it may have
	// started another process meanwhile.
	killPoll = 20 * time.Millisecond
	// killLimit bounds that. Only a process that hangs in the kernel lasts so
	// long, and nothing of ours can end it.
	killLimit = 10 * time.Second
)

// commandConfig is the command to run, in the keeper's own environment.
type commandConfig struct {
	Path string
	Args []string
}

// commandResult is how the command ended, or why it did not start.
type commandResult struct {
	Code  int
	Error string
}

// commandParent is the process between the supervisor and the user's command, seen
// from the supervisor. Whatever the command leaves behind becomes a child of
// the keeper, so it can be told apart from the parts of the cluster, and ends
// with the run even when the supervisor is killed.
type commandParent struct {
	process *exec.Cmd
	order   *os.File
	result  chan commandResult
	// ended is closed when the command has ended.
	ended chan struct{}
}

// startCommand starts the keeper, and thereby the command.
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
	// Pipes of ours would stay open as long as any process has them.
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
			result.Error = "the process that watches over it was killed"
		}
		k.result <- result
		close(k.ended)
	}()
	return k, nil
}

// end asks the command, and what it has started, to end, which has to happen
// within grace. It can be called again, to no effect.
func (p *commandParent) end(grace time.Duration) {
	_, _ = fmt.Fprintln(p.order, grace)
	p.order.Close()
}

// wait returns when the command and all that it started has ended.
func (p *commandParent) wait() {
	p.end(orphanGrace)
	linux.Resume(p.process.Process.Pid)
	_ = p.process.Wait() // a keeper that was killed left its work to the supervisor
}

// CommandParent is the main function of the keeper. It returns its exit status.
func CommandParent() int {
	// The supervisor orders the end. What is ignored stays so, for the command.
	notifyUnlessIgnored(make(chan os.Signal, 1), unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	// The parent-death signal of the command is tied to the thread that forked.
	runtime.LockOSThread()
	for _, fd := range []int{commandEndFD, commandResultFD, commandConfigFD} {
		unix.CloseOnExec(fd)
	}
	resultFile := os.NewFile(commandResultFD, "result")
	report := func(result commandResult) {
		_ = json.NewEncoder(resultFile).Encode(result) // nobody to tell if the supervisor is gone
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
			// For the case that the supervisor is killed in the same instant.
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

// readOrder returns when the supervisor wants the command to end, or is gone.
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

// reapAll waits for every child. To a subreaper, having none means that no
// descendant is left at all; none is closed then.
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
// that have not within grace. none says that there are no more.
func endDescendants(grace time.Duration, none <-chan struct{}) {
	signalDescendants(unix.SIGTERM)
	signalDescendants(unix.SIGCONT) // one that is stopped cannot act on the other
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
		return // only without /proc, where nothing works
	}
	for _, pid := range descendants {
		_ = unix.Kill(pid, signal)
	}
}

// endOrphans ends what became a child of the supervisor because its parent was
// killed. It is called when all other children have been waited for.
func endOrphans() {
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); pid == 0 || err == nil {
		none := make(chan struct{})
		go reapAll(0, nil, none)
		endDescendants(0, none)
	}
}

// statusCode is a process's exit code as a shell counts it: 128 and the signal
// for one that was killed.
func statusCode(status unix.WaitStatus) int {
	if status.Signaled() {
		return exitcode.Signal + int(status.Signal())
	}
	return status.ExitStatus()
}
