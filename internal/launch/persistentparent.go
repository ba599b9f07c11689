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
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

// persistentParent is the parent process of a persistent cluster. Its child is
// the supervisor, or the srun that starts it. It passes the output of the child
// on.
type persistentParent struct {
	config parentConfig
	stderr io.Writer
	mu     sync.Mutex
	// child is the supervisor, or srun.
	child *exec.Cmd
	// messages are for the command that waits until the cluster is up. It is nil
	// later.
	messages *os.File
}

// PersistentParent runs the persistent parent, and returns the exit status. Writes to
// stderr must not wait for its reader.
func PersistentParent(stderr io.Writer) int {
	runtime.LockOSThread() // the supervisor ends with the thread that started it
	k := persistentParent{stderr: stderr}
	files, err := linux.ReceiveFiles(&k.config, fdMessages)
	if err != nil {
		fmt.Fprintln(stderr, "berth: read the configuration of the cluster's parent:", err)
		return exitcode.Internal
	}
	k.messages = files[fdMessages]
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

// keep starts the cluster and returns its exit code when it has ended. The error is
// fs.ErrExist if another parent already keeps the job's cluster.
func (p *persistentParent) keep() (int, error) {
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
		// At SIGTERM, srun has its step killed at once. Without srun the step
		// continues, and ends in order when Slurm or berth down ends it.
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
	code := exitcode.OfStatus(p.child.ProcessState.Sys().(syscall.WaitStatus))
	if p.config.Elastic && code != 0 && !jobReturns(context.Background(), p.config.Job) {
		// When the head is killed, srun kills the role that does this otherwise.
		if err := cancelPilotsOf(context.Background(), p.config.Job); err != nil {
			p.receive("berth: " + err.Error())
		}
	}
	return code, nil
}

// jobReturns reports whether Slurm starts a job again. The next head needs the pilots that wait.
func jobReturns(ctx context.Context, job string) bool {
	starts, _ := strconv.Atoi(os.Getenv("SLURM_RESTART_COUNT"))
	moment, _ := slurm.Now(ctx, slurm.Job{ID: job}, slurm.AskLong) // what is known is enough
	return moment.Returns || moment.Restarts > starts
}

// endStep has Slurm end the cluster's step.
func (p *persistentParent) endStep() {
	ctx := context.Background()
	id, _, err := slurm.StepNamed(ctx, p.config.Job, upStep, slurm.AskLong)
	if err == nil && id != "" {
		err = slurm.TerminateStep(ctx, id, slurm.AskLong)
	}
	if err != nil {
		p.send(parentMessage{Said: "berth: end the step of the cluster: " + err.Error()})
	}
}

// shepherdMissed is the message of srun at its end after freeStep killed its
// child.
const shepherdMissed = "srun: error: write(shepherd): Broken pipe"

// freeStep kills the child that srun leaves behind (launch.c, _shepherd_spawn).
// That child would have the step killed at once after the end of srun. At the end
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

// receive passes a line from the cluster on. It goes to the command that waits
// until the cluster is up, and later to standard error.
func (p *persistentParent) receive(line string) {
	facts, up := parseUp(line)
	p.mu.Lock()
	waiting := p.messages != nil
	p.mu.Unlock()
	switch {
	case up && waiting:
		p.freeStep()
		p.send(parentMessage{Facts: &facts})
		p.mu.Lock()
		defer p.mu.Unlock()
		p.messages.Close() // the command returns then
		p.messages = nil
	case waiting:
		p.send(parentMessage{Said: line})
	case up, line == shepherdMissed: // a new head reports that the cluster is up
	case p.config.Words:
		fmt.Fprintln(p.stderr, line)
	}
}

func (p *persistentParent) send(word parentMessage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.messages != nil {
		_ = json.NewEncoder(p.messages).Encode(word) // a command that has ended needs no message
	}
}
