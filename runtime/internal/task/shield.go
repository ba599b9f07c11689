package task

import (
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	gorunc "github.com/containerd/go-runc"
)

// Shield returns a monitor that starts runc as inner does, and so that runc ignores
// SIGINT and SIGHUP from its first instruction: they reach every process of a job
// at once, also a runc that is about to end a container in order. Where runc becomes
// a process of a container, it starts with the default dispositions, which programs
// expect.
//
// SIGTERM and SIGQUIT are left out. The runtime of Go (1.26) installs its own
// handlers for them whatever it inherits, and unblocks them where they are blocked.
func Shield(inner gorunc.ProcessMonitor, sandbox string) gorunc.ProcessMonitor {
	s := &shield{ProcessMonitor: inner, sandbox: sandbox, caught: make(chan os.Signal, 1)}
	s.catch()
	return s
}

type shield struct {
	gorunc.ProcessMonitor
	sandbox string
	caught  chan os.Signal
	// mu serializes starts, because dispositions belong to the whole process.
	mu sync.Mutex
}

// catch has children start with the default dispositions.
func (s *shield) catch() { signal.Notify(s.caught, syscall.SIGINT, syscall.SIGHUP) }

// Start starts a command and subscribes to the exits of children.
func (s *shield) Start(c *exec.Cmd) (chan gorunc.Exit, error) {
	return s.start(c, s.ProcessMonitor.Start)
}

// StartLocked is Start for a thread that stays locked.
func (s *shield) StartLocked(c *exec.Cmd) (chan gorunc.Exit, error) {
	return s.start(c, s.ProcessMonitor.StartLocked)
}

func (s *shield) start(c *exec.Cmd, start func(*exec.Cmd) (chan gorunc.Exit, error)) (chan gorunc.Exit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.startsProgram(c.Args) {
		signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
		defer s.catch()
	}
	return start(c)
}

// startsProgram reports whether runc is to make a process that executes a program
// of a container. The container of the sandbox is none: pause blocks all signals.
func (s *shield) startsProgram(args []string) bool {
	return slices.Contains(args, "exec") || slices.Contains(args, "create") && args[len(args)-1] != s.sandbox
}
