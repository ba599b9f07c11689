package proof

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/job/rendezvous"
	"berth.dev/berth/internal/job/slurm"
)

// A step that berth starts itself gets a key that authenticates its nodes to each
// other. The key precedes the step's standard input. Arguments are visible to
// everybody, and cli_filter/syslog logs the environment of every srun. The
// connections for a step's standard streams go only to its own tasks.

// StepKeyVariable is set if a task's standard input begins with a key.
const StepKeyVariable = "BERTH_STEP_KEY"

// RelayArg starts this program again to pass the user's standard input on, after
// the key. main calls Relay then.
const RelayArg = "stdin-relay"

// muchInput is the smallest size, in bytes, of input that is not sent to all
// nodes.
const muchInput = 256 << 10

// GivesKey reports whether the step gets a key. All nodes read the key and with
// it all further input. A task that ends with some of it unread can keep srun
// from reading on (Slurm 22.05: after a megabyte). So munge is better if the
// input may be large. srun cannot send the same input to all components of a
// heterogeneous job.
func GivesKey(ctx context.Context, job slurm.Job, spec cluster.Spec) bool {
	return job.Components == 1 && (!UsesInput(spec) || isSmall(os.Stdin) || rendezvous.TryMunge(ctx) != nil)
}

// UsesInput reports whether a run may read its standard input.
func UsesInput(spec cluster.Spec) bool {
	return len(spec.Command) > 0 || slices.Contains(spec.Manifests, "-")
}

// isSmall reports whether a file contains little input. A terminal and the null
// device count as small.
func isSmall(file *os.File) bool {
	info, err := file.Stat()
	if err != nil {
		return false
	}
	return info.Mode()&os.ModeCharDevice != 0 || info.Mode().IsRegular() && info.Size() < muchInput
}

// PassKey replaces standard input for srun, which this process becomes or starts.
// The new input is a key, followed by the user's input. The calling thread must
// stay locked until srun has ended or taken over, because the relay for the
// user's input ends with the thread.
func PassKey(spec cluster.Spec) error {
	key, err := NewKey()
	if err != nil {
		return err
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer reader.Close()
	defer writer.Close()
	if _, err := writer.Write(key); err != nil {
		return fmt.Errorf("write the key of the step: %w", err)
	}
	if UsesInput(spec) {
		relay := exec.Command("/proc/self/exe", RelayArg)
		relay.Args[0] = "berth"
		relay.Stdin, relay.Stdout, relay.Stderr = os.Stdin, writer, os.Stderr
		relay.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := relay.Start(); err != nil {
			return fmt.Errorf("start the relay of standard input: %w", err)
		}
	}
	if err := unix.Dup3(int(reader.Fd()), 0, 0); err != nil {
		return fmt.Errorf("put a key in front of standard input: %w", err)
	}
	return nil
}

// Relay copies standard input to standard output. It ends with its parent. It
// ignores signals, which go to the whole job or come from Ctrl-C.
func Relay() int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		return 1 // srun has stopped reading
	}
	return 0
}

// takeKey returns the key from this task's standard input, or nil if there is
// none. The head keeps the rest for the user. Other nodes discard it, because a
// closed standard input of one task breaks the step (22.05).
func takeKey(ctx context.Context, getenv func(string) string, head bool) ([]byte, error) {
	if getenv(StepKeyVariable) == "" {
		return nil, nil
	}
	os.Unsetenv(StepKeyVariable)
	key := make([]byte, keySize)
	read := make(chan error, 1)
	go func() {
		_, err := io.ReadFull(os.Stdin, key)
		read <- err
		if !head {
			_, _ = io.Copy(io.Discard, os.Stdin)
		}
	}()
	select {
	case err := <-read:
		if err != nil {
			err = fmt.Errorf("read the key of the step from standard input: %w; %s is not for users to set", err, StepKeyVariable)
		}
		return key, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
