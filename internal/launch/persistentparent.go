package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

// persistentParent keeps a cluster that stays: it is the parent of its supervisor, or
// of the srun with it, and passes on what that says.
type persistentParent struct {
	config parentConfig
	mu     sync.Mutex
	// child is the supervisor, or srun.
	child *exec.Cmd
	// messages go to the command that waits until the cluster is up; nil later.
	messages *os.File
}

// PersistentParent is the main function of that process. It returns its exit status.
func PersistentParent() int {
	runtime.LockOSThread() // the supervisor ends with the thread that started it
	unix.CloseOnExec(parentConfigFD)
	unix.CloseOnExec(parentMessageFD)
	k := &persistentParent{messages: os.NewFile(parentMessageFD, "words")}
	code, err := k.keep()
	switch {
	case errors.Is(err, fs.ErrExist):
		k.send(parentMessage{Taken: true})
		return 0
	case err != nil:
		k.send(parentMessage{Said: "berth: " + err.Error()})
		code = exitcode.Internal
	}
	k.send(parentMessage{Ended: &code})
	return code
}

// keep starts the cluster and returns its exit code once it has ended.
func (p *persistentParent) keep() (int, error) {
	file := os.NewFile(parentConfigFD, "order")
	err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<20)).Decode(&p.config)
	file.Close()
	if err != nil {
		return 0, fmt.Errorf("read the order: %w", err)
	}
	if !p.config.Inside {
		memory := rundir.Memory(os.Getenv)
		if memory == "" {
			return exitcode.Unavailable, errors.New("find a place in memory: neither XDG_RUNTIME_DIR nor /dev/shm can be written")
		}
		dir, err := rundir.Claim(memory, upName(p.config.Job))
		if err != nil {
			return 0, err
		}
		defer dir.Remove() //nolint:errcheck // the next one removes what is left
	}
	p.child = exec.Command("/proc/self/exe", p.config.Args...)
	p.child.Args[0] = "berth"
	p.child.Env = append(os.Environ(), upVariable+"=1")
	p.child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	end := func() { _ = p.child.Process.Signal(syscall.SIGTERM) }
	if p.config.Job != persistent.Local {
		// On SIGTERM srun has its step killed at once. Without srun the step
		// goes on, and ends in order when Slurm, or berth down, says so.
		p.child.SysProcAttr.Pdeathsig = syscall.SIGKILL
		end = p.endStep
	}
	if p.config.Input {
		p.child.Stdin = os.Stdin
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	reader, writer, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("make pipe: %w", err)
	}
	defer writer.Close()
	p.child.Stdout, p.child.Stderr = writer, writer
	reading.Go(func() {
		defer reader.Close()
		lines(reader, p.receive)
	})
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := p.child.Start(); err != nil {
		return 0, fmt.Errorf("start the cluster: %w", err)
	}
	go func() {
		for range signals {
			end()
		}
	}()
	err = p.child.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return statusCode(unix.WaitStatus(p.child.ProcessState.Sys().(syscall.WaitStatus))), nil
}

// endStep tells the cluster to end, by Slurm.
func (p *persistentParent) endStep() {
	ctx := context.Background()
	id, _, err := slurm.StepNamed(ctx, p.config.Job, UpStep, slurm.AskPatiently)
	if err == nil && id != "" {
		_, err = slurm.AskPatiently(ctx, "scancel", "--signal=TERM", id)
	}
	if err != nil {
		p.send(parentMessage{Said: "berth: end the step of the cluster: " + err.Error()})
	}
}

// shepherdMissed is what srun says at its end without what freeStep has ended.
const shepherdMissed = "srun: error: write(shepherd): Broken pipe"

// freeStep takes away what would have the step killed at once when srun is: a
// child that srun leaves behind for that (launch.c, _shepherd_spawn). At the end
// of a batch script Slurm kills both, one after the other, and it would be chance
// whether the cluster could end in order.
func (p *persistentParent) freeStep() {
	if p.config.Job == persistent.Local {
		return
	}
	descendants, err := linux.Descendants(p.child.Process.Pid)
	if err != nil {
		return // only without /proc, where nothing works
	}
	for _, pid := range descendants {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// receive passes on what the cluster says, to the command that waits until it is up
// and later to standard error.
func (p *persistentParent) receive(line string) {
	facts, up := heardUp(line)
	p.mu.Lock()
	waiting := p.messages != nil
	p.mu.Unlock()
	switch {
	case up && waiting:
		p.freeStep()
		p.send(parentMessage{Facts: &facts})
		p.mu.Lock()
		defer p.mu.Unlock()
		p.messages.Close() // whoever waited goes
		p.messages = nil
	case waiting:
		p.send(parentMessage{Said: line})
	case up, line == shepherdMissed: // where another node leads it, it is up again
	case p.config.Words:
		fmt.Fprintln(os.Stderr, line)
	}
}

func (p *persistentParent) send(word parentMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.messages != nil {
		_ = json.NewEncoder(p.messages).Encode(word) // who has gone need not know
	}
}
