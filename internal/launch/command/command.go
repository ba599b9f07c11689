package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/launch/supervisor"
)

// Check returns an error if the command does not exist, before a cluster starts for it.
// The command may be empty.
func Check(args []string) error {
	if len(args) == 0 || slices.Contains(programs.Tools(), args[0]) {
		return nil
	}
	if args[0] == "" {
		return exitcode.Wrap(exitcode.Usage, errors.New("the command is empty: a program comes after '--'"))
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("run the command: %w", err))
	}
	return nil
}

// Tools holds the paths that programs beside a cluster need to reach it.
type Tools struct {
	Kubeconfig string
	// Cache is the directory where kubectl and helm cache the API of a server. By
	// default they use the home directory, with a folder for each address of a server,
	// which differs in each run.
	Cache string
	// Bin is the directory with kubectl and helm.
	Bin string
}

// env returns the environment variables that the tools need.
func (t Tools) env(getenv func(string) string) map[string]string {
	return map[string]string{
		"KUBECONFIG": t.Kubeconfig, "KUBECACHEDIR": t.Cache,
		"PATH": t.Bin + string(os.PathListSeparator) + getenv("PATH"),
	}
}

// Command is the user's command.
type Command struct {
	Args   []string
	Tools  Tools
	Getenv func(string) string
	// Environ is the command's environment. Env adds variables.
	Environ []string
	Env     map[string]string
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
}

// Run runs the command until it or ctx ends, and returns its exit code, or the cause of
// ctx. It calls started with the command's parent, which the caller must wait for.
func (c Command) Run(ctx context.Context, started func(*Parent)) (int, error) {
	// The tools come first in the command's PATH, and first in this lookup.
	name := c.Args[0]
	path, err := lookPath(name, c.Tools.Bin)
	if err != nil {
		path, err = exec.LookPath(name)
	}
	if err != nil {
		return 0, exitcode.Wrap(exitcode.NoInput, fmt.Errorf("run the command: %w", err))
	}
	env := replaceEnv(replaceEnv(c.Environ, c.Env), c.Tools.env(c.Getenv))
	parent, err := start(program{Path: path, Args: c.Args}, env, c.Stdin, c.Stdout, c.Stderr)
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Internal, err)
	}
	started(parent)
	ticker := time.NewTicker(supervisor.WatchPeriod)
	defer ticker.Stop()
	for {
		select {
		case result := <-parent.result:
			if result.Error != "" {
				return 0, exitcode.Wrap(exitcode.NoInput, fmt.Errorf("run the command %s: %s", name, result.Error))
			}
			if result.Killed {
				return 0, exitcode.Wrap(result.Code, fmt.Errorf("the command %s was killed (SIGKILL)", name))
			}
			return result.Code, nil
		case <-ticker.C:
			linux.Resume(parent.process.Process.Pid)
		case <-ctx.Done():
			parent.End(0)
			return 0, context.Cause(ctx)
		}
	}
}

// lookPath finds a tool in bin.
func lookPath(name, bin string) (string, error) {
	if strings.Contains(name, "/") {
		return "", exec.ErrNotFound
	}
	path := filepath.Join(bin, name)
	_, err := os.Stat(path)
	return path, err
}

// replaceEnv returns env with some variables replaced. It drops the variables
// that would make a program believe that it is the task that srun started.
func replaceEnv(env []string, replace map[string]string) []string {
	var all []string
	for _, entry := range env {
		name, _, _ := strings.Cut(entry, "=")
		if _, replaced := replace[name]; !replaced && !strings.HasPrefix(name, "PMI_") {
			all = append(all, entry)
		}
	}
	for name, value := range replace {
		all = append(all, name+"="+value)
	}
	return all
}
