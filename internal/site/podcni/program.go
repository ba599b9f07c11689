package podcni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

// program starts plugins. It replaces libcni's default, which kills a plugin that
// takes too long and then waits forever for any children of that plugin.
type program struct {
	version.PluginDecoder
}

func newProgram() invoke.Exec { return &program{} }

// outputDelay bounds the wait for remaining output after a plugin has ended.
const outputDelay = time.Second

// FindInPath returns the file of a plugin.
func (*program) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs a plugin in its own process group, and kills the group when the
// context ends. The error is a *types.Error only if the plugin itself returned one.
func (*program) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(ctx, path)
	command.Env, command.Stdin, command.Stdout, command.Stderr = theirs(environ), bytes.NewReader(stdin), &stdout, &stderr
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return unix.Kill(-command.Process.Pid, unix.SIGKILL) }
	command.WaitDelay = outputDelay
	err := command.Run()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w", path, ctx.Err())
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return stdout.Bytes(), nil
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return nil, err
	}
	said := &types.Error{}
	if exit.Exited() && json.Unmarshal(stdout.Bytes(), said) == nil && said.Msg != "" {
		return nil, said
	}
	return nil, errors.New(strings.TrimSpace(fmt.Sprintf("%v: %s %s", err, stderr.Bytes(), stdout.Bytes())))
}

// theirs returns the part of berthd's environment that plugins receive.
func theirs(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(variable string) bool {
		return !strings.HasPrefix(variable, "CNI_") && !strings.HasPrefix(variable, "PATH=")
	})
}
