package launch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/node/sandbox"
)

const (
	// maxRestarts bounds how often one role is started again within
	// restartWindow. A role that dies more often has a reason that a restart
	// does not cure.
	maxRestarts   = 3
	restartWindow = 5 * time.Minute
	// goPanic is the exit code of a Go program that crashed.
	goPanic = 2
	// hungAfter is how long a role may miss its heartbeats. On a node that
	// swaps or is overcommitted they can be seconds late.
	hungAfter = 20 * time.Second
	// startLimit is how long a role may be silent before it is ready for the
	// first time.
	startLimit  = 2 * time.Minute
	watchPeriod = 2 * time.Second
	// exitNotStarted stands for the status of a command that did not start,
	// as a shell has it.
	exitNotStarted = 127
	// lastLines is how much of a failed role's log is shown.
	lastLines = 8
)

// Role is one process of the cluster and how to start it.
type Role struct {
	Name string
	Path string
	Args []string
	Env  []string
	Log  string
	// Listeners follow the notify descriptor.
	Listeners []*os.File
	// Silent roles do not speak the notify protocol.
	Silent bool
	// Outside roles do not end with the sandbox.
	Outside bool
	// Optional roles are not missed: the run goes on when one cannot.
	Optional bool
	// Start runs the process with the given inherited descriptors from 3 up.
	Start func(r *Role, files []*os.File) error
	// Kill ends it with a signal that nothing withstands.
	Kill func(r *Role)
	// Release lets go what is kept for its next life; nil for nothing.
	Release func()
	// Resume continues it where a signal had stopped it, and tells whether
	// one had. It is nil for roles that the sandbox watches itself.
	Resume func() bool

	// The rest belongs to the crew.
	ready   chan struct{}
	isReady bool
	// restarts are the times of those within restartWindow.
	restarts []time.Time
	// life counts starts, so that a late event of an earlier life is known.
	life      int
	lastAlive time.Time
	fatal     string
	// counts are what the role said last that it has counted, and counted what
	// its earlier lives had.
	counts, counted map[string]uint64
}

// Supervisor is the set of roles of one run. The first role that cannot go on
// cancels the run with its reason.
type Supervisor struct {
	log    *slog.Logger
	report func(phase string)
	// GiveUp cancels the run.
	GiveUp context.CancelCauseFunc
	// KeepLogs: the logs outlive the run.
	KeepLogs bool
	// now is the clock.
	now func() time.Time

	mu       sync.Mutex
	roles    map[string]*Role
	stopping bool
	// once are the commands that end by themselves.
	once map[string]chan<- sandbox.Status
	// Outside are the waits for processes outside the sandbox.
	Outside sync.WaitGroup
}

func New(log *slog.Logger, report func(string), giveUp context.CancelCauseFunc) *Supervisor {
	return &Supervisor{log: log, report: report, GiveUp: giveUp, now: time.Now, roles: map[string]*Role{}, once: map[string]chan<- sandbox.Status{}}
}

// Add starts a role and watches it from now on.
func (s *Supervisor) Add(r *Role) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.ready = make(chan struct{})
	s.roles[r.Name] = r
	return s.start(r)
}

// start starts a role for the first time or again; mu is held.
func (s *Supervisor) start(r *Role) error {
	r.life++
	r.counted = sumCounts(r.counted, r.counts)
	r.counts = nil
	r.fatal = ""
	r.lastAlive = s.now()
	files := r.Listeners
	if !r.Silent {
		reader, writer, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("start %s: %w", r.Name, err)
		}
		defer writer.Close()
		go s.listen(r, r.life, reader)
		files = append([]*os.File{writer}, files...)
	}
	if err := r.Start(r, files); err != nil {
		return fmt.Errorf("start %s: %w", r.Name, err)
	}
	return nil
}

// listen takes in what one life of a role says about itself.
func (s *Supervisor) listen(r *Role, life int, reader *os.File) {
	defer reader.Close()
	// The end of the pipe is the end of the process, which is reported with
	// its status elsewhere.
	_ = notify.Read(reader, func(event notify.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.life != life {
			return
		}
		r.lastAlive = s.now()
		if event.Counts != nil {
			r.counts = event.Counts
		}
		switch event.Event {
		case notify.KindPhase:
			s.report(r.Name + "/" + event.Name)
		case notify.KindReady:
			s.report(r.Name + "/ready")
			if !r.isReady {
				r.isReady = true
				close(r.ready)
			}
		case notify.KindNotice:
			s.log.Warn(event.Name)
		case notify.KindFatal:
			r.fatal = event.Error
		}
	})
}

// Await returns when the role is ready for the first time.
func (s *Supervisor) Await(ctx context.Context, name string) error {
	s.mu.Lock()
	r := s.roles[name]
	s.mu.Unlock()
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Ended is called when a role's process has ended.
func (s *Supervisor) Ended(name string, status sandbox.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waiting, ok := s.once[name]; ok {
		delete(s.once, name)
		waiting <- status
		return
	}
	r, known := s.roles[name]
	if !known || s.stopping {
		return
	}
	what := "ended: " + status.String()
	if r.fatal != "" {
		what = "failed: " + r.fatal
	} else if cause := crash(r.Log); status.Code == goPanic && cause != "" {
		what += ": " + cause
	}
	now := s.now()
	r.restarts = slices.DeleteFunc(r.restarts, func(at time.Time) bool { return now.Sub(at) > restartWindow })
	switch {
	case !r.Silent && !r.isReady && status.Signal == 0:
		// A role that never came up has a reason that will not go away.
		s.failRole(r, what)
		return
	case len(r.restarts) >= maxRestarts:
		s.failRole(r, fmt.Sprintf("%s, after %d restarts within %s", what, maxRestarts, restartWindow))
		return
	}
	r.restarts = append(r.restarts, now)
	s.log.Warn(fmt.Sprintf("%s %s; starting it again", r.Name, what))
	if err := s.start(r); err != nil {
		s.failRole(r, fmt.Sprintf("%s and could not be started again: %v", what, err))
	}
}

func (s *Supervisor) failRole(r *Role, what string) {
	if r.Optional {
		delete(s.roles, r.Name)
		s.log.Warn(fmt.Sprintf("%s %s; the run goes on without it", r.Name, what))
		return
	}
	err := &FailedError{name: r.Name, what: what, log: r.Log, lines: tail(r.Log, lastLines), kept: s.KeepLogs}
	if strings.Contains(what+strings.Join(err.lines, ""), noWatchers) {
		// There were enough when the node was begun, and several begin at once.
		s.GiveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w\n%s", err, moreWatchers)))
		return
	}
	s.GiveUp(exitcode.Wrap(exitcode.Internal, err))
}

// Failed is called when a role's process could not be started.
func (s *Supervisor) Failed(name, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, known := s.roles[name]; known && !s.stopping {
		s.failRole(r, "could not be started: "+reason)
	}
	if waiting, ok := s.once[name]; ok {
		delete(s.once, name)
		s.log.Error(reason)
		waiting <- sandbox.Status{Code: exitNotStarted}
	}
}

// Resumed is called when a role's process was stopped by a signal, and has
// been continued: nothing else would ever do that.
func (s *Supervisor) Resumed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, known := s.roles[name]; known && !s.stopping {
		s.log.Warn(name + " was stopped by a signal, and is continued")
		r.lastAlive = s.now()
	}
}

// Watch looks after the roles until ctx ends.
func (s *Supervisor) Watch(ctx context.Context) {
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	last := s.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			last = s.look(last)
		}
	}
}

// look continues roles that were stopped and replaces those that miss their
// heartbeats. It is told when it was called last, and returns the time.
func (s *Supervisor) look(last time.Time) time.Time {
	now := s.now()
	// If this process itself was stopped, everybody's heartbeats are unread,
	// and nobody is hung.
	if now.Sub(last) > 2*watchPeriod {
		s.resetHeartbeats(now)
	}
	for _, name := range s.resume() {
		s.Resumed(name)
	}
	s.killHung(now)
	return now
}

// resume returns the names of the roles that it continued.
func (s *Supervisor) resume() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, r := range s.roles {
		if r.Resume != nil && r.Resume() {
			names = append(names, r.Name)
		}
	}
	return names
}

func (s *Supervisor) resetHeartbeats(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.roles {
		r.lastAlive = now
	}
}

func (s *Supervisor) killHung(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.roles {
		silence := now.Sub(r.lastAlive)
		switch {
		case r.Silent || s.stopping:
		case !r.isReady && silence >= startLimit:
			s.failRole(r, fmt.Sprintf("has not come up, and said nothing for %s", startLimit))
		case r.isReady && silence >= hungAfter:
			s.log.Warn(fmt.Sprintf("%s has not answered for %s; replacing it", r.Name, hungAfter))
			r.lastAlive = now
			r.Kill(r)
		}
	}
}

// IgnoreExits makes the crew ignore the ends of its roles: they are wanted now.
func (s *Supervisor) IgnoreExits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
}

// EndOutside ends the roles outside the sandbox and waits for them.
func (s *Supervisor) EndOutside() {
	s.mu.Lock()
	for _, r := range s.roles {
		if r.Outside {
			r.Kill(r)
			if r.Release != nil {
				r.Release()
			}
		}
	}
	s.mu.Unlock()
	s.Outside.Wait()
}

// InSandbox makes r a process of the sandbox.
func InSandbox(box *sandbox.Sandbox, r *Role) *Role {
	r.Start = func(r *Role, files []*os.File) error {
		return box.Run(sandbox.Command{Name: r.Name, Path: r.Path, Args: r.Args, Env: r.Env, Log: r.Log, Files: files})
	}
	r.Kill = func(r *Role) {
		// If the sandbox is gone, so is the role.
		_ = box.Signal(r.Name, syscall.SIGKILL)
	}
	return r
}
