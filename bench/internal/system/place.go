package system

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/bench/internal/record"
	"berth.dev/berth/bench/internal/step"
	"berth.dev/berth/bench/internal/window"
)

// endLimit limits how long a command may take to end after SIGTERM.
const endLimit = 20 * time.Second

// Place holds the hosts, programs and limits of tasks. Tasks run as steps of a Slurm job on
// Hosts, or, without Hosts, as processes of this machine.
type Place struct {
	// Self is the path of this program.
	Self string
	// Berth and Kubectl are the paths of these programs.
	Berth, Kubectl string
	// Archive is the path of the image with the programs of the cases, and Image its name.
	Archive, Image string
	// MPIArchive is the path of the image with MPI and its programs.
	MPIArchive string
	// StepImage is a directory to use as the image of job steps, if the site supports
	// that.
	StepImage string
	// Images is a folder with images to deliver, and Shared one that all hosts see.
	Images, Shared string
	// Before is a command to run on each host before the first image is delivered, such
	// as one that drops page caches.
	Before []string
	// SameHost puts clients and their servers on one host.
	SameHost bool
	Hosts    []string
	// CPUs and MemoryMB are the cores and the memory of a step on each host.
	CPUs, MemoryMB int
	// Timeout limits each task.
	Timeout time.Duration
}

// inSlurm reports whether tasks are Slurm steps.
func (p Place) inSlurm() bool { return len(p.Hosts) > 0 }

// step puts srun and its options before a program, if tasks are Slurm steps.
func (p Place) step(hosts []string, argv []string) []string {
	if !p.inSlurm() {
		return argv
	}
	n := strconv.Itoa(len(hosts))
	// --overlap: a server's step and the client's may share a host. -c: otherwise
	// a step is bound to one core.
	return append([]string{
		"srun", "--quiet", "--overlap", "--unbuffered", "-N" + n, "-n" + n, "-w", strings.Join(hosts, ","),
		"-c" + strconv.Itoa(p.CPUs), "--mem=" + strconv.Itoa(p.MemoryMB),
	}, argv...)
}

// stepWithoutInput is like step for a program that reads no standard input. Otherwise, once all hosts
// are connected, srun sends the end of its input (step_io.c, _file_readable). If a short program on
// one host has ended by then, its slurmstepd closes the connection with that message unread. srun
// may then see "Connection reset by peer", and kill the step.
func (p Place) stepWithoutInput(hosts, argv []string) []string {
	argv = p.step(hosts, argv)
	if p.inSlurm() {
		argv = slices.Insert(argv, 1, "--input=none")
	}
	return argv
}

// measured returns the command for a program on hosts, inside a step that
// reports its usage.
func (p Place) measured(hosts, argv []string) []string {
	return p.measuredThrough(hosts, "", nil, argv, false)
}

// measuredThrough is like measured for a program that a command of the host (through)
// starts. With an archive, the program is taken from that image. With noted, the step
// records the machine's activity while the program runs; in a container, the command of
// window.Shell records it instead.
func (p Place) measuredThrough(hosts []string, archive string, through, argv []string, noted bool) []string {
	own := []string{p.Self, step.Arg}
	if noted {
		own = append(own, "--window")
	}
	if archive != "" {
		own = append(own, "--image", archive)
	}
	if len(through) > 0 {
		own, argv = append(own, "--through", strconv.Itoa(len(through))), append(slices.Clone(through), argv...)
	}
	return p.step(hosts, append(append(own, "--"), argv...))
}

// host returns a list with one of the hosts, for a step.
func (p Place) host(n int) []string {
	if !p.inSlurm() {
		return nil
	}
	return p.Hosts[n : n+1]
}

// onPair runs this program once on each of the two hosts that programs and their servers
// use, and returns the output.
func (p Place) onPair(ctx context.Context, args ...string) (string, error) {
	return p.on(ctx, p.first(pair), args...)
}

func (p Place) on(ctx context.Context, hosts []string, args ...string) (string, error) {
	argv := p.step(hosts, append([]string{p.Self}, args...))
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	out, err := command.Output()
	return string(out), explain(argv, err)
}

// ask runs a program on the first host and returns its output.
func (p Place) ask(ctx context.Context, argv ...string) (string, error) {
	return p.askOn(ctx, p.host(0), argv...)
}

func (p Place) askOn(ctx context.Context, hosts []string, argv ...string) (string, error) {
	argv = p.step(hosts, argv)
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastWords(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}

// run runs a command with the text on standard input. It returns the command's output, its
// times, and the usage that a step reported. An error includes the end of the output.
func (p Place) run(ctx context.Context, argv []string, stdin string) (Output, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.Timeout, fmt.Errorf("it took longer than %s, the plan's timeout", p.Timeout))
	defer cancel()
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = endLimit
	command.Stdin = strings.NewReader(stdin)
	var said bytes.Buffer
	command.Stderr = &said
	first := &firstByte{}
	command.Stdout = first
	out := Output{Submitted: time.Now()}
	err := command.Run()
	out.Ended, out.First, out.Stdout = time.Now(), first.at, first.text.String()
	var rest []string
	for line := range strings.Lines(said.String()) {
		if text, ok := strings.CutPrefix(line, step.Mark); ok {
			if wrong := json.Unmarshal([]byte(text), &out.Step); wrong != nil {
				err = errors.Join(err, fmt.Errorf("parse the usage of the step: %w", wrong))
			}
			continue
		}
		rest = append(rest, line)
	}
	out.Said = strings.Join(rest, "")
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return out, fmt.Errorf("%w: %s", err, lastWords(out.Said+out.Stdout))
	}
	return out, nil
}

// noted moves the counters of the machine's activity from Stdout to Step.Window.
func noted(out Output, err error) (Output, error) {
	var wrong error
	out.Stdout, out.Step.Window, wrong = window.Cut(out.Stdout)
	if err == nil {
		err = wrong
	}
	return out, err
}

// firstByte is a buffer that records the time of the first write.
type firstByte struct {
	at   time.Time
	text strings.Builder
}

func (f *firstByte) Write(text []byte) (int, error) {
	if f.at.IsZero() {
		f.at = time.Now()
	}
	return f.text.Write(text)
}

// lastWords returns the end of a program's output as one line.
func lastWords(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	const few = 6
	if len(lines) > few {
		lines = lines[len(lines)-few:]
	}
	words := strings.Join(lines, " | ")
	if words == "" {
		return "it printed nothing"
	}
	return words
}

// explain adds the command and the end of its standard error to the error of Output.
func explain(argv []string, err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, lastWords(string(exit.Stderr)))
	}
	return err
}

// start starts a server in the background, waits until it listens, and returns a function
// that ends it.
func (p Place) start(ctx context.Context, argv []string) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = endLimit
	said, err := command.StderrPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	if err := command.Start(); err != nil {
		cancel()
		return nil, fmt.Errorf("start the server: %w", err)
	}
	ready := make(chan error, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		text, ok := step.AwaitListening(said)
		if ok {
			ready <- nil
			_, _ = io.Copy(io.Discard, said)
		}
		err := command.Wait()
		if !ok {
			ready <- errors.Join(errors.New("the server ended before it listened: "+lastWords(text)), err)
		}
	}()
	stop = func() {
		cancel()
		<-ended
	}
	select {
	case err = <-ready:
	case <-time.After(p.Timeout):
		err = fmt.Errorf("the server did not listen within %s", p.Timeout)
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// Lost returns an error if the job itself has ended. Callers use it after a failure.
func (p Place) Lost(ctx context.Context) error {
	if !p.inSlurm() {
		return nil
	}
	if _, err := p.ask(ctx, "true"); err != nil {
		return fmt.Errorf("the job runs no steps any more: %w; the same command goes on in another job", err)
	}
	return nil
}

// Machines describes the hosts.
func (p Place) Machines(ctx context.Context) (machines []record.Machine, err error) {
	// One host at a time, because srun mixes long lines of several hosts.
	for n := range max(1, len(p.Hosts)) {
		text, err := p.on(ctx, p.host(n), step.MachineArg)
		if err != nil {
			return nil, err
		}
		var machine record.Machine
		if err := json.Unmarshal([]byte(text), &machine); err != nil {
			return nil, fmt.Errorf("parse the description of a host: %w", err)
		}
		machines = append(machines, machine)
	}
	return machines, nil
}
