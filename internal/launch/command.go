package launch

import (
	"context"
	"errors"
	"fmt"
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

// checkCommand checks early that the command exists.
func checkCommand(command []string) error {
	if len(command) == 0 || slices.Contains(programs.Tools(), command[0]) {
		return nil
	}
	if command[0] == "" {
		return exitcode.Wrap(exitcode.Usage, errors.New("the command is empty: a program comes after '--'"))
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("run the command: %w", err))
	}
	return nil
}

// CheckScript checks early that the script exists and a shell can read it.
func CheckScript(path string) error {
	info, err := statReadable(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", path)
	}
	if err != nil {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("read the script: %w", err))
	}
	return nil
}

// runCommand runs the user's command on the host beside the cluster.
func (r *run) runCommand(ctx context.Context) (int, error) {
	tools, err := r.makeTools()
	if err != nil {
		return 0, err
	}
	replace, err := r.ksiEnv(ctx)
	if err != nil {
		return 0, err
	}
	return tools.run(ctx, r.Options, replace, r.setCommand)
}

// tools holds the paths that programs beside a cluster need to reach it.
type tools struct{ kubeconfig, cache, bin string }

// makeTools makes kubectl and helm available to the command.
func (r *run) makeTools() (tools, error) {
	t := tools{
		kubeconfig: r.kubeconfigPath(),
		// By default, kubectl and helm cache what they learn of a server in the
		// home directory, by its address, which differs in each run.
		cache: filepath.Join(r.scratch.Path, "tmp", "kubectl"),
		bin:   filepath.Join(r.private.Path, "bin"),
	}
	return t, exitcode.Wrap(exitcode.NoSpace, programs.LinkTools(t.bin))
}

// env returns the environment variables that the tools need.
func (t tools) env(getenv func(string) string) map[string]string {
	return map[string]string{
		"KUBECONFIG": t.kubeconfig, "KUBECACHEDIR": t.cache,
		"PATH": t.bin + string(os.PathListSeparator) + getenv("PATH"),
	}
}

// run runs the command of the options beside a cluster until it or ctx ends. It
// calls started with the command's parent process.
func (t tools) run(ctx context.Context, options Options, more map[string]string, started func(*commandParent)) (int, error) {
	// The tools come first in the command's PATH, and first in this lookup.
	name := options.Spec.Command[0]
	path, err := lookPath(name, t.bin)
	if err != nil {
		path, err = exec.LookPath(name)
	}
	if err != nil {
		return 0, exitcode.Wrap(exitcode.NoInput, fmt.Errorf("run the command: %w", err))
	}
	env := commandEnv(commandEnv(os.Environ(), more), t.env(options.Getenv))
	kept, err := startCommand(commandConfig{Path: path, Args: options.Spec.Command}, env, options.Stdin, options.Stdout, options.Stderr)
	if err != nil {
		return 0, exitcode.Wrap(exitcode.Internal, err)
	}
	started(kept)
	ticker := time.NewTicker(supervisor.WatchPeriod)
	defer ticker.Stop()
	for {
		select {
		case result := <-kept.result:
			if result.Error != "" {
				return 0, exitcode.Wrap(exitcode.NoInput, fmt.Errorf("run the command %s: %s", name, result.Error))
			}
			return result.Code, nil
		case <-ticker.C:
			linux.Resume(kept.process.Process.Pid)
		case <-ctx.Done():
			kept.end(0)
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

// commandEnv returns env with some variables replaced. It drops the variables
// that would make a program believe that it is the task that srun started.
func commandEnv(env []string, replace map[string]string) []string {
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
