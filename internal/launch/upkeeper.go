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

// upKeeper keeps a cluster that stays: it is the parent of its supervisor, or
// of the srun with it, and passes on what that says.
type upKeeper struct {
	order upOrder
	mu    sync.Mutex
	// child is the supervisor, or srun.
	child *exec.Cmd
	// words go to the command that waits until the cluster is up; nil later.
	words *os.File
}

// UpKeeper is the main function of that process. It returns its exit status.
func UpKeeper() int {
	runtime.LockOSThread() // the supervisor ends with the thread that started it
	unix.CloseOnExec(upOrderFD)
	unix.CloseOnExec(upWordsFD)
	k := &upKeeper{words: os.NewFile(upWordsFD, "words")}
	code, err := k.keep()
	switch {
	case errors.Is(err, fs.ErrExist):
		k.say(upWord{Taken: true})
		return 0
	case err != nil:
		k.say(upWord{Said: "berth: " + err.Error()})
		code = exitcode.Internal
	}
	k.say(upWord{Ended: &code})
	return code
}

// keep starts the cluster and returns its exit code once it has ended.
func (k *upKeeper) keep() (int, error) {
	file := os.NewFile(upOrderFD, "order")
	err := json.NewDecoder(io.NewSectionReader(file, 0, 1<<20)).Decode(&k.order)
	file.Close()
	if err != nil {
		return 0, fmt.Errorf("read the order: %w", err)
	}
	if !k.order.Inside {
		memory := rundir.Memory(os.Getenv)
		if memory == "" {
			return exitcode.Unavailable, errors.New("find a place in memory: neither XDG_RUNTIME_DIR nor /dev/shm can be written")
		}
		dir, err := rundir.Claim(memory, upName(k.order.Job))
		if err != nil {
			return 0, err
		}
		defer dir.Remove() //nolint:errcheck // the next one removes what is left
	}
	k.child = exec.Command("/proc/self/exe", k.order.Args...)
	k.child.Args[0] = "berth"
	k.child.Env = append(os.Environ(), upVariable+"=1")
	k.child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	end := func() { _ = k.child.Process.Signal(syscall.SIGTERM) }
	if k.order.Job != persistent.Local {
		// On SIGTERM srun has its step killed at once. Without srun the step
		// goes on, and ends in order when Slurm, or berth down, says so.
		k.child.SysProcAttr.Pdeathsig = syscall.SIGKILL
		end = k.endStep
	}
	if k.order.Input {
		k.child.Stdin = os.Stdin
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	reader, writer, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("make pipe: %w", err)
	}
	defer writer.Close()
	k.child.Stdout, k.child.Stderr = writer, writer
	reading.Go(func() {
		defer reader.Close()
		lines(reader, k.hear)
	})
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if err := k.child.Start(); err != nil {
		return 0, fmt.Errorf("start the cluster: %w", err)
	}
	go func() {
		for range signals {
			end()
		}
	}()
	err = k.child.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, err
	}
	return statusCode(unix.WaitStatus(k.child.ProcessState.Sys().(syscall.WaitStatus))), nil
}

// endStep tells the cluster to end, by Slurm.
func (k *upKeeper) endStep() {
	ctx := context.Background()
	id, _, err := slurm.StepNamed(ctx, k.order.Job, UpStep, slurm.AskPatiently)
	if err == nil && id != "" {
		_, err = slurm.AskPatiently(ctx, "scancel", "--signal=TERM", id)
	}
	if err != nil {
		k.say(upWord{Said: "berth: end the step of the cluster: " + err.Error()})
	}
}

// shepherdMissed is what srun says at its end without what freeStep has ended.
const shepherdMissed = "srun: error: write(shepherd): Broken pipe"

// freeStep takes away what would have the step killed at once when srun is: a
// child that srun leaves behind for that (launch.c, _shepherd_spawn). At the end
// of a batch script Slurm kills both, one after the other, and it would be chance
// whether the cluster could end in order.
func (k *upKeeper) freeStep() {
	if k.order.Job == persistent.Local {
		return
	}
	descendants, err := linux.Descendants(k.child.Process.Pid)
	if err != nil {
		return // only without /proc, where nothing works
	}
	for _, pid := range descendants {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// hear passes on what the cluster says, to the command that waits until it is up
// and later to standard error.
func (k *upKeeper) hear(line string) {
	facts, up := heardUp(line)
	k.mu.Lock()
	waiting := k.words != nil
	k.mu.Unlock()
	switch {
	case up && waiting:
		k.freeStep()
		k.say(upWord{Facts: &facts})
		k.mu.Lock()
		defer k.mu.Unlock()
		k.words.Close() // whoever waited goes
		k.words = nil
	case waiting:
		k.say(upWord{Said: line})
	case up, line == shepherdMissed: // where another node leads it, it is up again
	case k.order.Words:
		fmt.Fprintln(os.Stderr, line)
	}
}

func (k *upKeeper) say(word upWord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.words != nil {
		_ = json.NewEncoder(k.words).Encode(word) // who has gone need not know
	}
}
