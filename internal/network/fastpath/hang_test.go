package fastpath

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// hangsAfter is when a lab gives up waiting for one of its processes. No call takes nearly
// as long on a busy machine, and the tests of a package have ten minutes.
const hangsAfter = 3 * time.Minute

// within returns the result of f. If f hangs, within fails the test with the state of all
// processes of the lab, and ends them: otherwise the end of the lab would hang, too.
func (l *lab) within(what string, f func() error) error {
	l.Helper()
	result := make(chan error, 1)
	go func() { result <- f() }()
	select {
	case err := <-result:
		return err
	case <-time.After(hangsAfter):
	}
	l.Errorf("no answer within %v: %s\n%s", hangsAfter, what, l.state())
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
		case <-time.After(labTimeout):
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

// end ends all processes. The agents and Switches show the stacks of their goroutines.
func (l *lab) end() {
	all, _ := linux.Descendants(os.Getpid())
	for _, pid := range all {
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		variables := strings.Split(string(environment), "\x00")
		if slices.Contains(variables, asRole+"="+roleAgent) || slices.Contains(variables, asRole+"="+roleSwitch) {
			_ = unix.Kill(pid, syscall.SIGQUIT)
			continue
		}
		_ = unix.Kill(pid, syscall.SIGKILL)
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
