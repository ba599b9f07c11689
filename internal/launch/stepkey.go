package launch

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
	"berth.dev/berth/internal/job/slurm"
)

// A step that berth starts itself gets a key for its nodes to prove themselves
// with, in front of its standard input. Everybody sees arguments, and
// cli_filter/syslog logs the environment of every srun; the connections for a
// step's standard streams go to its own tasks only.

// stepKeyVariable says that a task's standard input begins with a key.
const stepKeyVariable = "BERTH_STEP_KEY"

// RelayArg is the argument with which the program is started again to pass the
// user's standard input on behind the key; main hands it to Relay.
const RelayArg = "stdin-relay"

// muchInput is from how many bytes on input is not passed to all nodes.
const muchInput = 256 << 10

// givesKey tells whether the step gets a key. All nodes read it, and with it all
// that follows: each gets the whole input, and a task that ends with some of it
// unread can keep srun from reading on (Slurm 22.05: after a megabyte). So where
// the input may be large, munge is better. srun cannot give the same input to
// all components of a heterogeneous job.
func givesKey(ctx context.Context, job slurm.Job, spec cluster.Spec) bool {
	return severalNodes(job) && job.Components == 1 && (!usesInput(spec) || isSmall(os.Stdin) || tryMunge(ctx) != nil)
}

// usesInput tells whether a run may read its standard input.
func usesInput(spec cluster.Spec) bool {
	return len(spec.Command) > 0 || slices.Contains(spec.Manifests, "-")
}

// isSmall tells whether little is to be read from a file: a person types, the
// null device is empty.
func isSmall(file *os.File) bool {
	info, err := file.Stat()
	if err != nil {
		return false
	}
	return info.Mode()&os.ModeCharDevice != 0 || info.Mode().IsRegular() && info.Size() < muchInput
}

// passKey makes the standard input of the program that this process is about
// to become: a key, and then the user's own. Call it from the thread that
// executes it, which has to stay locked: what relays the rest ends with that.
func passKey(spec cluster.Spec) error {
	key, err := newKey()
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
	if usesInput(spec) {
		relay := exec.Command("/proc/self/exe", RelayArg)
		relay.Args[0] = "berth"
		relay.Stdin, relay.Stdout, relay.Stderr = os.Stdin, writer, os.Stderr
		relay.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := relay.Start(); err != nil {
			return fmt.Errorf("start what passes standard input on: %w", err)
		}
	}
	if err := unix.Dup3(int(reader.Fd()), 0, 0); err != nil {
		return fmt.Errorf("put a key in front of standard input: %w", err)
	}
	return nil
}

// Relay copies standard input to standard output. It ends with its parent: a
// signal for the whole job, or Ctrl-C, is not for it.
func Relay() int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		return 1 // srun does not read any more
	}
	return 0
}

// takeKey returns the key in front of this task's standard input, nil where
// there is none. At the head, what follows is the user's; the others swallow it:
// the stream to a task that has closed its end breaks the step (22.05).
func takeKey(ctx context.Context, getenv func(string) string, head bool) ([]byte, error) {
	if getenv(stepKeyVariable) == "" {
		return nil, nil
	}
	os.Unsetenv(stepKeyVariable)
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
			err = fmt.Errorf("read the key of the step from standard input: %w; %s is not for users to set", err, stepKeyVariable)
		}
		return key, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
