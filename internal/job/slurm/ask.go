package slurm

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/probe"
)

// askLimit and longLimit bound a request to the controller. A busy controller can take
// minutes to answer.
const (
	askLimit  = 3 * time.Second
	longLimit = 30 * time.Second
)

// outputDelay bounds the time to read the output of an ended command if another process still
// has it open. A site's wrapper may leave such a process. Each child that this process forks
// meanwhile is one, too, until it calls execve.
const outputDelay = 3 * time.Second

// Ask runs a Slurm command and returns its output. It is a parameter so that tests
// can replace it.
type Ask func(ctx context.Context, command ...string) ([]byte, error)

// AskSlurm runs a Slurm command for at most three seconds. The error of a failed command
// contains the first line of its standard error.
func AskSlurm(ctx context.Context, command ...string) ([]byte, error) {
	return askWithin(ctx, nil, askLimit, command...)
}

// AskLong works like AskSlurm, but with a longer limit, for callers that cannot
// continue without an answer.
func AskLong(ctx context.Context, command ...string) ([]byte, error) {
	return askWithin(ctx, nil, longLimit, command...)
}

// AskLongWith works like AskLong, but commands receive only env. Variables such as
// SQUEUE_PARTITION and SLURM_CLUSTERS change what the commands do.
func AskLongWith(env []string) Ask {
	return func(ctx context.Context, command ...string) ([]byte, error) {
		return askWithin(ctx, env, longLimit, command...)
	}
}

// askWithin uses the environment of this process if env is nil.
func askWithin(ctx context.Context, env []string, limit time.Duration, command ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = env
	cmd.WaitDelay = outputDelay
	// Ctrl-C, and the SIGHUP when a terminal's session leader ends, go to all
	// processes in the foreground. They would kill an scancel that ends a step in
	// order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	output, err := cmd.Output()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return output, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("run %s: no answer within %s: %w", strings.Join(command, " "), limit, ctx.Err())
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		said, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		return nil, fmt.Errorf("run %s: %w: %s", strings.Join(command, " "), err, said)
	}
	return nil, fmt.Errorf("run %s: %w", strings.Join(command, " "), err)
}

// EndTime returns the end of the job's time: from the environment (Slurm 23.02),
// otherwise from scontrol, which may take three seconds. So berth calls it in the
// background while it starts. A job without a limit has the zero time.
func EndTime(ctx context.Context, job Job, ask Ask) (time.Time, error) {
	if !job.End.IsZero() {
		return job.End, nil
	}
	said, err := showJob(ctx, job, ask)
	if err != nil {
		return time.Time{}, err
	}
	return readEnd(job, said)
}

// minTime is the time that a job must have left for a cluster to be of any use.
const minTime = 5 * time.Second

// Remaining returns the time that a job has left, rounded to seconds, and reports whether
// that is enough for a cluster. A job whose end is the zero time has no limit: then left is
// 0 and enough is true.
func Remaining(end, now time.Time) (left time.Duration, enough bool) {
	left = max(0, end.Sub(now).Round(time.Second))
	return left, end.IsZero() || left >= minTime
}

// readEnd parses the end of a job in scontrol's output.
func readEnd(job Job, said string) (time.Time, error) {
	value, ok := field(said, "EndTime")
	if !ok {
		return time.Time{}, fmt.Errorf("read the end of job %s from scontrol: no EndTime in its answer", job.ID)
	}
	end, err := ParseTime(value)
	if err != nil {
		return time.Time{}, fmt.Errorf("read the end of job %s from scontrol: %w", job.ID, err)
	}
	return end, nil
}

// ParseTime parses a time of scontrol; it returns the zero time for a missing one.
// The controller prints its local time without a zone, and the hosts of a cluster
// have the same zone.
func ParseTime(value string) (time.Time, error) {
	switch value {
	case "", "Unknown", "NONE", "None", "N/A":
		return time.Time{}, nil
	}
	return time.ParseInLocation("2006-01-02T15:04:05", value, time.Local)
}

// nodeMemory asks scontrol for the memory in bytes that the job has on this node, and
// returns 0 for all memory of the node. It is needed where neither the kernel nor the
// environment has the number: srun sets no variable for its own --mem.
func nodeMemory(ctx context.Context, job Job, ask Ask) (uint64, error) {
	said, err := showJob(ctx, job, ask)
	if err != nil {
		return 0, err
	}
	if value, ok := field(said, "MinMemoryNode"); ok {
		return parseSize(value)
	}
	if value, ok := field(said, "MinMemoryCPU"); ok {
		each, err := parseSize(value)
		return each * uint64(max(1, job.AllocatedCPUs, job.CPUsOnNode)), err
	}
	return 0, fmt.Errorf("read the memory of job %s from scontrol: none in its answer", job.ID)
}

// LimitMemory lowers limit to the memory that the job requested, as scontrol reports it.
// It returns limit unchanged, without asking, if the kernel enforces limit or if it is less
// than the memory of the machine. On an error it returns limit unchanged, too.
func LimitMemory(ctx context.Context, job Job, limit probe.Memory, ask Ask) (probe.Memory, error) {
	if limit.Enforced || limit.Bytes < limit.Physical {
		return limit, nil
	}
	bytes, err := nodeMemory(ctx, job, ask)
	if err == nil && bytes > 0 && bytes < limit.Bytes {
		limit.Bytes, limit.Source = bytes, "the job's memory, as scontrol says"
	}
	return limit, err
}

// NodeAddress returns the name or address that Slurm uses to reach a node: NodeAddr
// in slurm.conf, for sites that cannot resolve the name of the node.
func NodeAddress(ctx context.Context, node string, ask Ask) (string, error) {
	said, err := ask(ctx, "scontrol", "--oneliner", "show", "node", node)
	if err != nil {
		return "", err
	}
	address, ok := field(string(said), "NodeAddr")
	if !ok {
		return "", fmt.Errorf("read the address of node %s from scontrol: no NodeAddr in its answer", node)
	}
	return address, nil
}

// parseSize returns the bytes of a size in Slurm's notation, such as 1500M, 2G or 0. A
// number without a unit counts MiB.
func parseSize(text string) (uint64, error) {
	unit := uint64(1) << 20
	number := text
	if i := strings.IndexAny(text, "KMGT"); i == len(text)-1 && i > 0 {
		number = text[:i]
		unit = map[byte]uint64{'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}[text[i]]
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n < 0 || n > 1<<40 {
		return 0, fmt.Errorf("read the size %q of scontrol: it is not a number", text)
	}
	return uint64(n * float64(unit)), nil
}

// showJob returns scontrol's description of a job, in words "Name=value".
func showJob(ctx context.Context, job Job, ask Ask) (string, error) {
	output, err := ask(ctx, "scontrol", "--oneliner", "show", "job", job.ID)
	return string(output), err
}

// field finds a word "Name=value" in scontrol's output for one object.
func field(output, name string) (string, bool) {
	for word := range strings.FieldsSeq(output) {
		if value, ok := strings.CutPrefix(word, name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Config is Slurm's configuration as `scontrol show config` prints it. Names
// are compared without case, as Slurm does.
type Config map[string]string

// ErrNoSlurm reports that Slurm's commands are not installed here.
var ErrNoSlurm = errors.New("scontrol is not in PATH")

// ReadConfig asks the controller for its configuration.
func ReadConfig(ctx context.Context, ask Ask) (Config, error) {
	output, err := ask(ctx, "scontrol", "show", "config")
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return nil, ErrNoSlurm
		}
		return nil, err
	}
	return parseConfig(output), nil
}

// parseConfig parses lines of "Name = value" and ignores headings. Prolog and
// Epilog can have several entries, "Prolog[0] = ...", which stay separate.
func parseConfig(output []byte) Config {
	config := Config{}
	for line := range strings.Lines(string(output)) {
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || name == "" || strings.ContainsAny(name, " \t") {
			continue
		}
		config[strings.ToLower(name)] = strings.TrimSpace(value)
	}
	return config
}

// Get returns a setting; "(null)" and "N/A" count as not set.
func (c Config) Get(name string) string {
	value := c[strings.ToLower(name)]
	if value == "(null)" || value == "N/A" {
		return ""
	}
	return value
}
