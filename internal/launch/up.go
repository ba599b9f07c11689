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

// UpFlag is the flag of berth up that runs the cluster in the calling process,
// not in the background.
const UpFlag = "foreground"

// Up starts a persistent cluster and returns when it is ready. Messages of the
// start go to standard error. args are the arguments of the command line. If a cluster is
// up already, Up returns its facts and ErrIsUp.
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
	// If a signal interrupts this command, the cluster must end, too.
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

// isUp reports whether a cluster is up where a new one would start, and returns its facts.
// It waits for a cluster that is starting. If the cluster is on other hosts, the facts
// contain only its job.
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
		_, head, err := slurm.StepNamed(ctx, job.ID, upStep, slurm.AskLong)
		return facts, head != "", exitcode.Wrap(exitcode.Unavailable, err)
	}
	return facts, false, nil
}

// PersistentParentArg starts this program again as the persistent parent, which
// keeps a cluster. main calls PersistentParent then.
const PersistentParentArg = "up-parent"

// parentConfig is the configuration of the persistent parent.
type parentConfig struct {
	// Args are the arguments that start the cluster of Job.
	Args []string
	Job  string
	// Inside is set for a process of the job, which Slurm kills at the job's end.
	// Nobody could remove the parent's directory then.
	Inside bool
	// Elastic is set if pods of the cluster may have brought jobs.
	Elastic bool
	// Input is set if the cluster reads the user's standard input.
	Input bool
	// Words is set if later messages of the cluster go to standard error.
	Words bool
}

// parentMessage is a message from the persistent parent to the waiting command.
// It carries a line of the cluster's output, the fact that the cluster is up, its
// exit code, or the fact that another parent keeps it.
type parentMessage struct {
	Said  string            `json:",omitempty"`
	Facts *persistent.Facts `json:",omitempty"`
	Ended *int              `json:",omitempty"`
	Taken bool              `json:",omitempty"`
}

// fdMessages is the name of the pipe for parentMessages.
const fdMessages = "messages"

// startPersistentParent starts the persistent parent and returns the pipe with
// its messages. It has its own session, because Ctrl-C and the end of a terminal
// must not reach the cluster.
func startPersistentParent(options Options, args []string, inside bool) (*os.Process, *os.File, error) {
	o := parentConfig{Args: args, Job: jobOf(options.Getenv), Inside: inside, Elastic: options.Spec.Seats > 0, Input: slices.Contains(options.Spec.Manifests, "-")}
	// Send later messages to a terminal or a file, but not to a pipe, whose
	// reader waits for its end.
	if info, err := os.Stderr.Stat(); err == nil {
		o.Words = info.Mode().IsRegular() || info.Mode()&os.ModeCharDevice != 0
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("make pipe: %w", err)
	}
	defer writer.Close()
	process := exec.Command("/proc/self/exe", PersistentParentArg)
	process.Args[0] = "berth"
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	var fds linux.FDTable
	fds.Add(fdMessages, writer)
	if o.Input {
		process.Stdin = os.Stdin
	}
	if o.Words {
		process.Stderr = os.Stderr
	}
	if err := fds.Start(process, o); err != nil {
		reader.Close()
		return nil, nil, fmt.Errorf("start the process that keeps the cluster: %w", err)
	}
	return process.Process, reader, nil
}

// upName returns the name of the directory in memory that the persistent parent
// of a job holds.
func upName(job string) string { return "up-" + job }

// awaitPersistentParent returns when no process on this host keeps the cluster of
// a job, or ctx ends.
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

// awaitUnlocked returns when no process holds the lock of a directory, or ctx
// ends.
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

// longestLine bounds a line of a cluster's output.
const longestLine = 1 << 20

// lines calls do for each line until the end of the file.
func lines(from *os.File, do func(string)) {
	scanner := bufio.NewScanner(from)
	scanner.Buffer(nil, longestLine)
	for scanner.Scan() {
		do(scanner.Text())
	}
}

// downLimit bounds the wait for the parent of a cluster that has ended.
const downLimit = 15 * time.Second
