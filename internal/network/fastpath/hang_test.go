package fastpath

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// hangsAfter is when a lab gives up waiting for one of its processes. No call takes nearly
// as long on a busy machine, and the tests of a package have ten minutes.
const hangsAfter = 3 * time.Minute

// afterHang replaces hangsAfter when the processes of a lab were killed: the end of the lab
// waits for each of them.
const afterHang = 5 * time.Second

// within returns the result of f. If f hangs, within fails the test with the state of all
// processes of the lab, and ends them: otherwise the end of the lab would hang, too.
func (l *lab) within(what string, f func() error) error {
	l.Helper()
	result := make(chan error, 1)
	go func() { result <- f() }()
	select {
	case err := <-result:
		return err
	case <-time.After(l.patience):
	}
	if l.patience == afterHang {
		l.Errorf("no answer within %v, after a hang: %s", afterHang, what)
	} else {
		l.Errorf("no answer within %v: %s\n%s", l.patience, what, l.state())
	}
	l.patience = afterHang
	l.end()
	l.FailNow()
	return nil
}

// call calls the agent.
func (h *host) call(method string, args, reply any) error {
	h.lab.Helper()
	return h.lab.within(fmt.Sprintf("%s %v of node %d", method, args, h.index), func() error {
		return h.agent.Call(method, args, reply)
	})
}

// state describes all processes and Switches.
func (l *lab) state() string {
	var b strings.Builder
	timeout, cancel := context.WithTimeout(context.Background(), labTimeout) // for all agents
	defer cancel()
	for _, h := range l.hosts {
		report := make(chan string, 1)
		go func() {
			var text string
			err := h.agent.Call("Agent.Report", 0, &text)
			report <- fmt.Sprintf("%s%v", text, err)
		}()
		select {
		case text := <-report:
			fmt.Fprintf(&b, "programs of node %d: %s\n", h.index, text)
		case <-timeout.Done():
			fmt.Fprintf(&b, "the agent of node %d does not report\n", h.index)
		}
		s, err := openState(h.state)
		if err != nil {
			fmt.Fprintf(&b, "state of Switch %d: %v\n", h.index, err)
			continue
		}
		for _, r := range s.inherited() {
			if r.kind != kindSwitched && r.kind != kindSticky && r.kind != kindSteered {
				fmt.Fprintf(&b, "record of Switch %d: kind %d, stage %d, fd %d, bell %d, %v from %v, call %d of thread %d\n", h.index,
					r.kind, r.stage, r.fd, r.bell, r.local.addrPort(), r.peer.addrPort(), r.call.Call, r.call.Thread)
			}
		}
		s.close()
	}
	all, err := linux.Descendants(os.Getpid())
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	for _, pid := range slices.Sorted(slices.Values(all)) {
		describeProcess(&b, pid)
	}
	return b.String()
}

// describeProcess writes what the kernel says about a process, its threads and its
// descriptors.
func describeProcess(b *strings.Builder, pid int) {
	directory := fmt.Sprintf("/proc/%d", pid)
	fmt.Fprintf(b, "process %d", pid)
	environment, _ := os.ReadFile(directory + "/environ")
	for variable := range strings.SplitSeq(string(environment), "\x00") {
		if name, value, _ := strings.Cut(variable, "="); name == asRole || name == "ARGS" || name == "POD" || name == "OLD" || name == "NODE" {
			fmt.Fprintf(b, ", %s %s", name, strings.ReplaceAll(value, "\x1f", " "))
		}
	}
	fmt.Fprintln(b)
	tasks, _ := filepath.Glob(directory + "/task/*")
	for _, task := range tasks {
		fmt.Fprintf(b, "  thread %s:", filepath.Base(task))
		status, _ := os.ReadFile(task + "/status")
		for line := range strings.Lines(string(status)) {
			switch name, value, _ := strings.Cut(line, ":"); name {
			case "State", "SigPnd", "ShdPnd", "SigBlk", "voluntary_ctxt_switches":
				fmt.Fprintf(b, " %s %s,", name, strings.TrimSpace(value))
			}
		}
		for _, name := range []string{"wchan", "syscall", "stack"} { // only root reads stacks
			if text, err := os.ReadFile(task + "/" + name); err == nil {
				fmt.Fprintf(b, " %s %s,", name, strings.TrimSpace(string(text)))
			}
		}
		fmt.Fprintln(b)
	}
	descriptors, _ := filepath.Glob(directory + "/fd/*")
	for _, descriptor := range descriptors {
		target, _ := os.Readlink(descriptor)
		fmt.Fprintf(b, "  %s %s", filepath.Base(descriptor), target)
	}
	fmt.Fprintln(b)
	for _, table := range []string{"tcp", "tcp6"} {
		text, _ := os.ReadFile(directory + "/net/" + table)
		b.Write(text)
	}
}

// end ends all processes, even if they are stopped. The agents and Switches show the stacks
// of their goroutines.
func (l *lab) end() {
	all, _ := linux.Descendants(os.Getpid())
	for _, pid := range all {
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		variables := strings.Split(string(environment), "\x00")
		if slices.Contains(variables, asRole+"="+roleAgent) || slices.Contains(variables, asRole+"="+roleSwitch) {
			_ = unix.Kill(pid, syscall.SIGQUIT)
			_ = unix.Kill(pid, syscall.SIGCONT)
			continue
		}
		_ = unix.Kill(pid, syscall.SIGKILL)
	}
}

// silent records failures of a lab that must not fail the test.
type silent struct {
	testing.TB
	failures int
}

func (s *silent) Errorf(string, ...any) { s.failures++ }

func (s *silent) FailNow() {}

// TestHangEndsSoon has a process hang that is stopped. It must end, and the end of the lab
// must not wait for as long as the hang did.
func TestHangEndsSoon(t *testing.T) {
	stopped := exec.Command("sleep", "infinity")
	stopped.Env = append(os.Environ(), asRole+"="+roleSwitch)
	if err := stopped.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = stopped.Wait()
	}()
	if err := stopped.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	failures := &silent{TB: t}
	l := &lab{TB: failures, patience: time.Millisecond}
	_ = l.within("the stopped process", func() error {
		<-ended
		return nil
	})
	if failures.failures != 1 || l.patience != afterHang {
		t.Errorf("after %d failures, the lab waits for %v", failures.failures, l.patience)
	}
	select {
	case <-ended:
	case <-time.After(labTimeout):
		t.Error("the stopped process does not end")
		_ = stopped.Process.Kill()
		<-ended
	}
}

// errorOutput holds what a program has written to its standard error so far.
type errorOutput struct {
	mu   sync.Mutex
	text strings.Builder
}

func (e *errorOutput) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.Write(b)
}

func (e *errorOutput) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.text.String()
}
