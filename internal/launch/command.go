package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// commandGrace is how long the user's command may take to end after it was
// asked to, before it is killed.
const commandGrace = 5 * time.Second

// tools are the programs that come with berth and that a command finds in its
// PATH.
var tools = []string{"kubectl", "helm"}

// runCommand runs the user's command on the host beside the cluster.
func (r *run) runCommand(ctx context.Context) (int, error) {
	bin, err := r.makeBin()
	if err != nil {
		return 0, fail(ExitNoSpace, err)
	}
	command := exec.CommandContext(ctx, r.Spec.Command[0], r.Spec.Command[1:]...)
	command.Stdin, command.Stdout, command.Stderr = r.Stdin, r.Stdout, r.Stderr
	command.Env = commandEnv(os.Environ(), map[string]string{
		"KUBECONFIG": r.kubeconfigPath(),
		"PATH":       bin + string(os.PathListSeparator) + r.Getenv("PATH"),
	})
	// The tools come first in the command's PATH, and in ours while looking.
	if found, err := lookPath(command.Args[0], bin); err == nil {
		command.Path, command.Err = found, nil
	}
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.WaitDelay = commandGrace
	err = command.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case errors.As(err, &exit):
		return shellCode(exit.ProcessState), nil
	case err != nil:
		return 0, fail(ExitNoInput, fmt.Errorf("run the command: %w", err))
	}
	return 0, nil
}

// makeBin makes a directory with nothing but the tools: the other programs in
// libexec are none of the user's business.
func (r *run) makeBin() (string, error) {
	bin := filepath.Join(r.private.Path, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		return "", fmt.Errorf("make directory of tools: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find berth's own file: %w", err)
	}
	links := map[string]string{"berth": self}
	for _, tool := range tools {
		links[tool] = filepath.Join(r.plan.Paths.Libexec, tool)
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(bin, name)); err != nil {
			return "", fmt.Errorf("make directory of tools: %w", err)
		}
	}
	return bin, nil
}

// lookPath finds one of the tools in bin.
func lookPath(name, bin string) (string, error) {
	if strings.Contains(name, "/") {
		return "", exec.ErrNotFound
	}
	path := filepath.Join(bin, name)
	_, err := os.Stat(path)
	return path, err
}

// commandEnv is env with some variables replaced.
func commandEnv(env []string, replace map[string]string) []string {
	var all []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if _, replaced := replace[name]; !replaced {
			all = append(all, entry)
		}
	}
	for name, value := range replace {
		all = append(all, name+"="+value)
	}
	return all
}

// shellCode is a process's exit code as a shell counts it: 128 and the signal
// for one that was killed.
func shellCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalBase + int(status.Signal())
	}
	return state.ExitCode()
}
