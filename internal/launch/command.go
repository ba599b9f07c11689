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

	"berth.dev/berth/internal/linux"
)

// tools are the programs that come with berth and that a command finds in its
// PATH.
var tools = []string{"kubectl", "helm"}

// checkCommand finds out early whether there is such a command.
func checkCommand(command []string) error {
	if len(command) == 0 || slices.Contains(tools, command[0]) {
		return nil
	}
	if command[0] == "" {
		return fail(ExitUsage, errors.New("the command is empty: a program comes after '--'"))
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		return fail(ExitNoInput, fmt.Errorf("run the command: %w", err))
	}
	return nil
}

// runCommand runs the user's command on the host beside the cluster.
func (r *run) runCommand(ctx context.Context) (int, error) {
	bin, err := r.makeBin()
	if err != nil {
		return 0, fail(ExitNoSpace, err)
	}
	// The tools come first in the command's PATH, and in ours while looking.
	name := r.Spec.Command[0]
	path, err := lookPath(name, bin)
	if err != nil {
		path, err = exec.LookPath(name)
	}
	if err != nil {
		return 0, fail(ExitNoInput, fmt.Errorf("run the command: %w", err))
	}
	env := commandEnv(os.Environ(), map[string]string{
		"KUBECONFIG": r.kubeconfigPath(),
		// kubectl and helm keep what they learn of a server in the home
		// directory otherwise, by an address that is another one each time.
		"KUBECACHEDIR": filepath.Join(r.scratch.Path, "tmp", "kubectl"),
		"PATH":         bin + string(os.PathListSeparator) + r.Getenv("PATH"),
	})
	kept, err := startKeeper(keeperConfig{Path: path, Args: r.Spec.Command}, env, r.Stdin, r.Stdout, r.Stderr)
	if err != nil {
		return 0, fail(ExitInternal, err)
	}
	r.setKeeper(kept)
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	for {
		select {
		case result := <-kept.result:
			if result.Error != "" {
				return 0, fail(ExitNoInput, fmt.Errorf("run the command %s: %s", name, result.Error))
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
