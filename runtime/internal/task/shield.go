package task

import (
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"

	gorunc "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/linux"
)

// Shield returns a monitor that starts runc as inner does, but with SIGINT and SIGHUP
// ignored. These signals reach every process of a job at once, including a runc that is
// about to end a container in order. A runc that will execute a program of a container
// starts with the default dispositions, which programs expect.
//
// If the container needs one, the monitor also starts runc with a filter that traps
// sysinfo(2). runc's children inherit the filter, and listen answers the calls.
//
// SIGTERM and SIGQUIT are left out. The runtime of Go (1.26) installs its own
// handlers for them whatever it inherits, and unblocks them where they are blocked.
// So Wait restarts a runc that SIGTERM or SIGQUIT has ended.
func Shield(inner gorunc.ProcessMonitor, sandbox string, listen Listen) gorunc.ProcessMonitor {
	s := &shield{ProcessMonitor: inner, sandbox: sandbox, listen: listen, caught: make(chan os.Signal, 1), unstarted: map[*exec.Cmd]*exec.Cmd{}}
	s.catch()
	return s
}

// Listen installs a filter on the calling thread, for a process of the container
// with that id, and answers the calls that it traps. It is nil where no container
// needs a filter.
type Listen func(id string)

type shield struct {
	gorunc.ProcessMonitor
	sandbox string
	listen  Listen
	caught  chan os.Signal
	// mu serializes starts, because dispositions belong to the whole process.
	mu sync.Mutex
	// unstarted holds copies, made before the start, of the commands that Wait may start
	// again. Only a copy has the context of the command.
	unstarted map[*exec.Cmd]*exec.Cmd
}

// catch catches SIGINT and SIGHUP, so that children start with the default dispositions.
func (s *shield) catch() { signal.Notify(s.caught, syscall.SIGINT, syscall.SIGHUP) }

// Start starts a command and subscribes to the exits of children.
func (s *shield) Start(c *exec.Cmd) (chan gorunc.Exit, error) {
	return s.start(c, s.ProcessMonitor.Start)
}

// StartLocked works like Start, for a thread that stays locked.
func (s *shield) StartLocked(c *exec.Cmd) (chan gorunc.Exit, error) {
	return s.start(c, s.ProcessMonitor.StartLocked)
}

func (s *shield) start(c *exec.Cmd, start func(*exec.Cmd) (chan gorunc.Exit, error)) (chan gorunc.Exit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.startsProgram(c.Args) {
		signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
		defer s.catch()
		again := *c
		exits, err := start(c)
		if err == nil && endsContainer(c.Args) {
			s.unstarted[c] = &again
		}
		return exits, err
	}
	if s.listen == nil {
		return start(c)
	}
	var exits chan gorunc.Exit
	var err error
	started := make(chan struct{})
	go linux.OnNewThread(func() {
		s.listen(c.Args[len(c.Args)-1])
		exits, err = start(c)
		close(started)
		if c.Process == nil {
			return
		}
		// runc is killed when the thread that started it ends (PdeathSignal), so
		// wait for it, but leave its status to the reaper.
		for unix.Waitid(unix.P_PID, c.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
		}
	})
	<-started
	return exits, err
}

// restarts bounds the restarts of one runc. Each is due to one more signal within the few
// milliseconds that runc takes.
const restarts = 10

// Wait waits for a command and returns its status. It starts a runc that signals or
// deletes a container again if a signal to every process of the job has ended runc. If
// runc failed, the kubelet would stop the sandbox, which kills the container at once.
func (s *shield) Wait(c *exec.Cmd, exits chan gorunc.Exit) (int, error) {
	for left := restarts; ; left-- {
		status, err := s.ProcessMonitor.Wait(c, exits)
		again := s.takeCopy(c)
		if err != nil || again == nil || left == 0 || !endedFromOutside(status) {
			return status, err
		}
		if again.Cancel != nil { // it would kill the process that has ended
			again.Cancel = func() error { return again.Process.Kill() }
		}
		if exits, err = s.StartLocked(again); err != nil {
			return status, err
		}
		c = again
	}
}

// takeCopy removes the copy of a command that can be started again; nil if there is none.
func (s *shield) takeCopy(c *exec.Cmd) *exec.Cmd {
	s.mu.Lock()
	defer s.mu.Unlock()
	copied := s.unstarted[c]
	delete(s.unstarted, c)
	return copied
}

// endsContainer reports whether runc is to signal or delete a container, which it can
// do twice.
func endsContainer(args []string) bool {
	return slices.Contains(args, "kill") || slices.Contains(args, "delete")
}

// goQuits is the status of a program in Go that SIGQUIT ends. The program first prints its
// stacks. A panic has the same status, which Wait returns after the last restart. Otherwise
// runc (1.5) ends with status 1 if it cannot signal or delete a container.
const goQuits = 2

// endedFromOutside reports whether a status is that of a process ended by a signal that
// runc cannot ignore. SIGQUIT itself ends runc only before the runtime of Go begins.
func endedFromOutside(status int) bool {
	return status == 128+int(syscall.SIGTERM) || status == 128+int(syscall.SIGQUIT) || status == goQuits
}

// startsProgram reports whether runc is to make a process that executes a program
// of a container. pause, the program of the sandbox, does not count, because it blocks
// all signals.
func (s *shield) startsProgram(args []string) bool {
	return slices.Contains(args, "exec") || slices.Contains(args, "create") && args[len(args)-1] != s.sandbox
}
