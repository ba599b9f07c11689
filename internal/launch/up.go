package launch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
)

// UpFlag is the flag of berth up by which the cluster runs in the process that
// is called, and not in the background.
const UpFlag = "foreground"

// ErrIsUp says that there is such a cluster already.
var ErrIsUp = errors.New("a cluster is up already")

// Up starts a cluster that stays, and returns once it can be used. What it says
// while it starts goes to standard error. args are those of the command line.
func Up(ctx context.Context, options Options, args []string) (persistent.Facts, error) {
	if err := errors.Join(options.Spec.Validate()); err != nil {
		return persistent.Facts{}, exitcode.Wrap(exitcode.Usage, err)
	}
	job, inJob := slurm.Here()
	if inJob && isTask(job, options.Getenv) && job.Tasks > 1 {
		return persistent.Facts{}, exitcode.Wrap(exitcode.Usage, errors.New("start a cluster from one of several tasks: call 'berth up' without srun, which starts it on all nodes of the job, or with --"+UpFlag))
	}
	if facts, up, err := isUp(ctx, options, job, inJob); err != nil || up {
		return facts, errors.Join(err, ErrIsUp)
	}
	if err := checkOutside(ctx, options, inJob); err != nil {
		return persistent.Facts{}, err
	}
	parent, said, err := startPersistentParent(options, args, inJob && job.Place != slurm.PlaceShell)
	if err != nil {
		return persistent.Facts{}, err
	}
	defer said.Close()
	// The cluster is not to outlast a start that was cut short.
	stop := context.AfterFunc(ctx, func() { _ = parent.Signal(syscall.SIGTERM) })
	defer stop()
	for words := json.NewDecoder(said); ; {
		var word parentMessage
		err := words.Decode(&word)
		switch {
		case err != nil && ctx.Err() != nil:
			return persistent.Facts{}, context.Cause(ctx)
		case err != nil:
			return persistent.Facts{}, exitcode.Wrap(exitcode.Internal, errors.New("the process that keeps the cluster was killed"))
		case word.Facts != nil:
			return *word.Facts, nil
		case word.Taken:
			facts, _, err := isUp(ctx, options, job, inJob)
			return facts, errors.Join(err, ErrIsUp)
		case word.Ended != nil && ctx.Err() != nil:
			return persistent.Facts{}, context.Cause(ctx)
		case word.Ended != nil:
			return persistent.Facts{}, &exitcode.Error{Code: max(1, *word.Ended), Err: errors.New("the cluster has not come up")}
		}
		fmt.Fprintln(options.Stderr, word.Said)
	}
}

// isUp looks for a cluster that stands where a new one would. Of one that is
// elsewhere only the job is known.
func isUp(ctx context.Context, options Options, job slurm.Job, inJob bool) (persistent.Facts, bool, error) {
	facts := persistent.Facts{Job: jobOf(options.Getenv)}
	cluster, ok := persistent.Find(rundir.MemoryPlaces(options.Getenv), facts.Job)
	switch {
	case ok && cluster.Head == "":
		waiting, cancel := context.WithTimeout(ctx, persistentLimit)
		defer cancel()
		found, err := cluster.AwaitReady(waiting)
		if errors.Is(err, persistent.ErrEnded) {
			return facts, false, nil
		}
		return found, true, exitcode.Wrap(exitcode.Unavailable, err)
	case ok:
		return facts, true, nil
	case inJob && job.Place == slurm.PlaceShell:
		_, head, err := slurm.StepNamed(ctx, job.ID, UpStep, slurm.AskPatiently)
		return facts, head != "", exitcode.Wrap(exitcode.Unavailable, err)
	}
	return facts, false, nil
}

// PersistentParentArg is the argument with which the program is started again as the
// process that keeps a cluster; main hands it to UpKeeper.
const PersistentParentArg = "up-keeper"

// upVariable has a cluster that stays say on standard output that it is up.
const upVariable = "BERTH_UP_REPORT"

// parentConfig is what the keeper is to do.
type parentConfig struct {
	// Args start the cluster; it is that of Job.
	Args []string
	Job  string
	// Inside: this is a process of the job, which Slurm kills at its end. Then
	// nobody is left to remove a directory that says that there is a keeper.
	Inside bool
	// Input: standard input is the user's.
	Input bool
	// Words: what the cluster says later is passed on to standard error.
	Words bool
}

// parentMessage is what the keeper says to the command that waits: what the cluster
// says, that it is up, how it ended, or that another keeper has it.
type parentMessage struct {
	Said  string            `json:",omitempty"`
	Facts *persistent.Facts `json:",omitempty"`
	Ended *int              `json:",omitempty"`
	Taken bool              `json:",omitempty"`
}

// Descriptors of the keeper.
const (
	parentConfigFD  = 3
	parentMessageFD = 4
)

// startPersistentParent starts the process that keeps the cluster, and returns what it
// says. It has a session of its own: Ctrl-C and the end of a terminal are not
// for the cluster.
func startPersistentParent(options Options, args []string, inside bool) (*os.Process, *os.File, error) {
	o := parentConfig{Args: args, Job: jobOf(options.Getenv), Inside: inside, Input: slices.Contains(options.Spec.Manifests, "-")}
	// A terminal and a file take later words; who reads a pipe waits for its end.
	if info, err := os.Stderr.Stat(); err == nil {
		o.Words = info.Mode().IsRegular() || info.Mode()&os.ModeCharDevice != 0
	}
	encoded, err := json.Marshal(o)
	if err != nil {
		return nil, nil, err
	}
	file, err := linux.MemoryFile("order", encoded)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	defer writer.Close()
	process := exec.Command("/proc/self/exe", PersistentParentArg)
	process.Args[0] = "berth"
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	process.ExtraFiles = []*os.File{file, writer}
	if o.Input {
		process.Stdin = os.Stdin
	}
	if o.Words {
		process.Stderr = os.Stderr
	}
	if err := process.Start(); err != nil {
		reader.Close()
		return nil, nil, fmt.Errorf("start the process that keeps the cluster: %w", err)
	}
	return process.Process, reader, nil
}

// upName is the keeper's directory in memory, which tells that there is one.
func upName(job string) string { return "up-" + job }

// awaitPersistentParent returns when no process of this host keeps the cluster of a job
// any more, or ctx ends.
func awaitPersistentParent(ctx context.Context, getenv func(string) string, job string) {
	for _, place := range rundir.MemoryPlaces(getenv) {
		for _, path := range rundir.Live(place) {
			if filepath.Base(path) != upName(job) {
				continue
			}
			awaitUnlocked(ctx, path)
		}
	}
}

// awaitUnlocked returns when no process has a directory locked, or ctx ends.
func awaitUnlocked(ctx context.Context, path string) {
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = rundir.Await(path)
	}()
	select {
	case <-gone:
	case <-ctx.Done():
	}
}

// longestLine bounds one that a cluster says.
const longestLine = 1 << 20

// lines calls do for each line that is read until the end.
func lines(from *os.File, do func(string)) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, longestLine)
	for scanner.Scan() {
		do(scanner.Text())
	}
}

// downLimit bounds the wait for the keeper of a cluster that has ended.
const downLimit = 15 * time.Second
