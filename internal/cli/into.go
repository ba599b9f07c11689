package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"berth.dev/berth/internal/access/login"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/launch/allocation"
)

// takeJob splits a leading name of a job off a command's arguments.
func takeJob(args []string) (job string, rest []string) {
	if len(args) > 0 && login.IsJobName(args[0]) {
		return args[0], args[1:]
	}
	return "", args
}

// reach opens a session with the cluster of a job, or of the only one.
func reach(ctx context.Context, job string) (*login.Session, error) {
	place, err := newPlace()
	if err != nil {
		return nil, err
	}
	target, err := place.Resolve(ctx, job)
	if err != nil {
		return nil, err
	}
	return place.Connect(ctx, target)
}

// clusterEnv returns this process's environment with the variables that a program
// needs to reach the cluster of a session. exec.Cmd takes the last value of a name.
func clusterEnv(session *login.Session, extra ...string) []string {
	return append(append(os.Environ(), sessionEnv(session)...), extra...)
}

// sessionEnv returns the variables that a program needs to reach the cluster.
func sessionEnv(session *login.Session) []string {
	return []string{
		"KUBECONFIG=" + session.Kubeconfig,
		// kubectl names its cache after the server's address, which changes with
		// each tunnel. In the home directory such caches would accumulate.
		"KUBECACHEDIR=" + session.Cache,
		login.EnvJob + "=" + session.Target.String(),
	}
}

// runProgram runs one of the programs that come with berth against the cluster
// of a session, and ends as it does.
func runProgram(ctx context.Context, session *login.Session, name string, args ...string) error {
	directory, err := programs.Dir()
	if err != nil {
		return err
	}
	command := exec.Command(filepath.Join(directory, name), args...)
	command.Env = clusterEnv(session)
	return runThroughTunnel(ctx, session, command)
}

// briefly is the longest time of a program that ends too soon for the end of the job
// to be the cause. Slurm is not asked about the job then.
const briefly = 2 * time.Second

// follows reports whether kubectl's arguments make it follow something to the
// end. It then exits with success, even if a job was ended meanwhile.
func follows(args []string) bool {
	flags := []string{"-w", "--watch", "--watch=true", "--watch-only", "--watch-only=true"}
	if slices.Contains(args, "logs") {
		flags = []string{"-f", "--follow", "--follow=true"}
	}
	for _, arg := range args {
		if arg == "--" {
			return false
		}
		if slices.Contains(flags, arg) {
			return true
		}
	}
	return false
}

// runThroughTunnel runs a command at the terminal while the tunnel is open.
func runThroughTunnel(ctx context.Context, session *login.Session, command *exec.Cmd) error {
	command.Stdin, command.Stderr = os.Stdin, os.Stderr
	if command.Stdout == nil {
		command.Stdout = os.Stdout
	}
	// The command needs the tunnel, so it must end with this process. The kernel sends
	// Pdeathsig when the thread that started the command ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	began := time.Now()
	if err := command.Start(); err != nil {
		return fmt.Errorf("start %s: %w; unpack the whole archive, bin/ and libexec/ side by side", command.Path, err)
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ctx.Done():
			// A terminal sends its own signals to both. A second one does no harm.
			_ = command.Process.Signal(allocation.EndingSignal(context.Cause(ctx)))
		case <-ended:
		}
	}()
	err := command.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return err
	}
	code := command.ProcessState.ExitCode()
	if status := command.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		code = 128 + int(status.Signal())
	}
	lasting := time.Since(began) > briefly
	if code == 0 && lasting && follows(command.Args) && ctx.Err() == nil {
		place, err := newPlace()
		if err != nil {
			return err
		}
		return place.CutShort(ctx, session.Target)
	}
	if code == 0 {
		return nil
	}
	check := session.Check
	if lasting {
		check = session.CheckJob
	}
	if lost := check(); lost != nil && ctx.Err() == nil {
		return lost
	}
	return &result{code}
}
