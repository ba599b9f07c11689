package link

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"berth.dev/berth/bench/internal/plan"
)

// GuardArg is the argument that makes this program run Guard.
const GuardArg = "link-guard"

// guard is a separate process that undoes changes when the pipe to it closes,
// even if the process that made them was killed.
type guard struct {
	command *exec.Cmd
	pipe    io.WriteCloser
}

// newGuard starts a guard, which holds the network namespaces open.
func newGuard(self string, namespaces ...*os.File) (*guard, error) {
	g := &guard{command: exec.Command(self, GuardArg)}
	g.command.ExtraFiles = namespaces
	g.command.Stderr = os.Stderr
	g.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // protects it from signals of the terminal
	var err error
	if g.pipe, err = g.command.StdinPipe(); err != nil {
		return nil, err
	}
	said, err := g.command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := g.command.Start(); err != nil {
		return nil, fmt.Errorf("start the guard: %w", err)
	}
	// The guard is ready once it ignores signals.
	if line, err := bufio.NewReader(said).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("wait for the guard: %q: %w", line, err), g.command.Wait())
	}
	return g, nil
}

func (g *guard) record(u Undo) error {
	text, err := json.Marshal(u)
	if err != nil {
		return err
	}
	_, err = g.pipe.Write(append(text, '\n'))
	return err
}

// end makes the guard undo all changes, and waits until it has done so.
func (g *guard) end() error {
	err := g.pipe.Close()
	if wrong := g.command.Wait(); wrong != nil {
		err = errors.Join(err, fmt.Errorf("undo the changes of the link: %w", wrong))
	}
	return err
}

// Guard runs the guard process. It prints a line to the writer to when it is ready, and
// reads one Undo on each line of from. At end-of-file it undoes the changes in reverse
// order. It returns an error for each that it cannot undo, unless the interface is gone.
func Guard(from io.Reader, to io.Writer) error {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	fmt.Fprintln(to, "ready")
	var all []Undo
	lines := bufio.NewScanner(from)
	for lines.Scan() {
		var u Undo
		if err := json.Unmarshal(lines.Bytes(), &u); err != nil {
			break // the writer was killed before it made that change
		}
		all = append(all, u)
	}
	slices.Reverse(all)
	var problems []error
	for _, u := range all {
		if err := u.do(context.Background()); err != nil && !u.gone(context.Background()) {
			problems = append(problems, fmt.Errorf("%s: %w", strings.Join(u.Set, " "), err))
		}
	}
	return errors.Join(problems...)
}

// do undoes a change, unless the setting still has its former value.
func (u Undo) do(ctx context.Context) error {
	if now, err := ask(ctx, u.Get); err != nil || now == u.Before {
		return err
	}
	if _, err := ask(ctx, u.Set); err != nil {
		return err
	}
	now, err := ask(ctx, u.Get)
	if err == nil && now != u.Before {
		err = fmt.Errorf("it is %q, and was %q", now, u.Before)
	}
	return err
}

// gone reports whether the interface of a setting no longer exists.
func (u Undo) gone(ctx context.Context) bool {
	if u.Gone == nil {
		return false
	}
	_, err := ask(ctx, u.Gone)
	return err == nil
}

// For runs a command while a link is set up, and returns the command's exit code. The
// command ends with this process. pids selects the hosts: each is the network namespace of
// one of these processes, which may end before the guard has undone everything. Without
// pids, the only host is this process's namespace. warn receives each setting that could
// not be made.
func For(ctx context.Context, self string, l plan.Link, device string, pids, argv []string, warn func(string)) (code int, err error) {
	var namespaces []*os.File
	defer func() {
		for _, namespace := range namespaces {
			namespace.Close()
		}
	}()
	for _, pid := range pids {
		namespace, err := os.Open("/proc/" + pid + "/ns/net")
		if err != nil {
			return 0, fmt.Errorf("look for the network namespace of process %s: %w", pid, err)
		}
		namespaces = append(namespaces, namespace)
	}
	g, err := newGuard(self, namespaces...)
	if err != nil {
		return 0, err
	}
	hosts := []Host{}
	for n := range namespaces {
		const first = 3 // the descriptor after standard error
		hosts = append(hosts, Host{fmt.Sprintf("/proc/%d/fd/%d", g.command.Process.Pid, first+n)})
	}
	if len(hosts) == 0 {
		hosts = []Host{{}}
	}
	defer func() { err = errors.Join(err, g.end()) }()
	if err := up(ctx, l, device, hosts, g.record, warn); err != nil {
		return 0, err
	}
	held, err := holdAwake(l, wakeFile)
	if err != nil {
		warn(fmt.Sprintf("not set: %s: %v", wakeFile, err))
	}
	defer held.Close() // on a nil file it only returns an error
	command := exec.CommandContext(ctx, argv[0], argv[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	err = command.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			return 128 + int(status.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}
