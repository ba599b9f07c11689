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

// role is one process of the cluster and how to start it.
type role struct {
	name string
	path string
	args []string
	env  []string
	log  string
	// listeners follow the notify descriptor.
	listeners []*os.File
	// silent roles do not speak the notify protocol.
	silent bool
	// outside roles do not end with the sandbox.
	outside bool
	// optional roles are not missed: the run goes on when one cannot.
	optional bool
	// start runs the process with the given inherited descriptors from 3 up.
	start func(r *role, files []*os.File) error
	// kill ends it with a signal that nothing withstands.
	kill func(r *role)
	// release lets go what is kept for its next life; nil for nothing.
	release func()
	// resume continues it where a signal had stopped it, and tells whether
	// one had. It is nil for roles that the sandbox watches itself.
	resume func() bool

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

// crew is the set of roles of one run. The first role that cannot go on
// cancels the run with its reason.
type crew struct {
	log    *slog.Logger
	report func(phase string)
	// giveUp cancels the run.
	giveUp context.CancelCauseFunc
	// keepLogs: the logs outlive the run.
	keepLogs bool
	// now is the clock.
	now func() time.Time

	mu       sync.Mutex
	roles    map[string]*role
	stopping bool
	// once are the commands that end by themselves.
	once map[string]chan<- sandbox.Status
	// group are the waits for processes outside the sandbox.
	group sync.WaitGroup
}

func newCrew(log *slog.Logger, report func(string), giveUp context.CancelCauseFunc) *crew {
	return &crew{log: log, report: report, giveUp: giveUp, now: time.Now, roles: map[string]*role{}, once: map[string]chan<- sandbox.Status{}}
}

// add starts a role and watches it from now on.
func (c *crew) add(r *role) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.ready = make(chan struct{})
	c.roles[r.name] = r
	return c.launch(r)
}

// launch starts a role for the first time or again; mu is held.
func (c *crew) launch(r *role) error {
	r.life++
	r.counted = sumCounts(r.counted, r.counts)
	r.counts = nil
	r.fatal = ""
	r.lastAlive = c.now()
	files := r.listeners
	if !r.silent {
		reader, writer, err := os.Pipe()
		if err != nil {
			return fmt.Errorf("start %s: %w", r.name, err)
		}
		defer writer.Close()
		go c.listen(r, r.life, reader)
		files = append([]*os.File{writer}, files...)
	}
	if err := r.start(r, files); err != nil {
		return fmt.Errorf("start %s: %w", r.name, err)
	}
	return nil
}

// listen takes in what one life of a role says about itself.
func (c *crew) listen(r *role, life int, reader *os.File) {
	defer reader.Close()
	// The end of the pipe is the end of the process, which is reported with
	// its status elsewhere.
	_ = notify.Read(reader, func(event notify.Event) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if r.life != life {
			return
		}
		r.lastAlive = c.now()
		if event.Counts != nil {
			r.counts = event.Counts
		}
		switch event.Event {
		case notify.KindPhase:
			c.report(r.name + "/" + event.Name)
		case notify.KindReady:
			c.report(r.name + "/ready")
			if !r.isReady {
				r.isReady = true
				close(r.ready)
			}
		case notify.KindNotice:
			c.log.Warn(event.Name)
		case notify.KindFatal:
			r.fatal = event.Error
		}
	})
}

// await returns when the role is ready for the first time.
func (c *crew) await(ctx context.Context, name string) error {
	c.mu.Lock()
	r := c.roles[name]
	c.mu.Unlock()
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// ended is called when a role's process has ended.
func (c *crew) ended(name string, status sandbox.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if waiting, ok := c.once[name]; ok {
		delete(c.once, name)
		waiting <- status
		return
	}
	r, known := c.roles[name]
	if !known || c.stopping {
		return
	}
	what := "ended: " + status.String()
	if r.fatal != "" {
		what = "failed: " + r.fatal
	} else if cause := crash(r.log); status.Code == goPanic && cause != "" {
		what += ": " + cause
	}
	now := c.now()
	r.restarts = slices.DeleteFunc(r.restarts, func(at time.Time) bool { return now.Sub(at) > restartWindow })
	switch {
	case !r.silent && !r.isReady && status.Signal == 0:
		// A role that never came up has a reason that will not go away.
		c.lose(r, what)
		return
	case len(r.restarts) >= maxRestarts:
		c.lose(r, fmt.Sprintf("%s, after %d restarts within %s", what, maxRestarts, restartWindow))
		return
	}
	r.restarts = append(r.restarts, now)
	c.log.Warn(fmt.Sprintf("%s %s; starting it again", r.name, what))
	if err := c.launch(r); err != nil {
		c.lose(r, fmt.Sprintf("%s and could not be started again: %v", what, err))
	}
}

func (c *crew) lose(r *role, what string) {
	if r.optional {
		delete(c.roles, r.name)
		c.log.Warn(fmt.Sprintf("%s %s; the run goes on without it", r.name, what))
		return
	}
	err := &roleError{name: r.name, what: what, log: r.log, lines: tail(r.log, lastLines), kept: c.keepLogs}
	if strings.Contains(what+strings.Join(err.lines, ""), noWatchers) {
		// There were enough when the node was begun, and several begin at once.
		c.giveUp(exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("%w\n%s", err, moreWatchers)))
		return
	}
	c.giveUp(exitcode.Wrap(exitcode.Internal, err))
}

// failed is called when a role's process could not be started.
func (c *crew) failed(name, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, known := c.roles[name]; known && !c.stopping {
		c.lose(r, "could not be started: "+reason)
	}
	if waiting, ok := c.once[name]; ok {
		delete(c.once, name)
		c.log.Error(reason)
		waiting <- sandbox.Status{Code: exitNotStarted}
	}
}

// resumed is called when a role's process was stopped by a signal, and has
// been continued: nothing else would ever do that.
func (c *crew) resumed(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, known := c.roles[name]; known && !c.stopping {
		c.log.Warn(name + " was stopped by a signal, and is continued")
		r.lastAlive = c.now()
	}
}

// watch looks after the roles until ctx ends.
func (c *crew) watch(ctx context.Context) {
	ticker := time.NewTicker(watchPeriod)
	defer ticker.Stop()
	last := c.now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			last = c.look(last)
		}
	}
}

// look continues roles that were stopped and replaces those that miss their
// heartbeats. It is told when it was called last, and returns the time.
func (c *crew) look(last time.Time) time.Time {
	now := c.now()
	// If this process itself was stopped, everybody's heartbeats are unread,
	// and nobody is hung.
	if now.Sub(last) > 2*watchPeriod {
		c.forgive(now)
	}
	for _, name := range c.resume() {
		c.resumed(name)
	}
	c.killHung(now)
	return now
}

// resume returns the names of the roles that it continued.
func (c *crew) resume() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, r := range c.roles {
		if r.resume != nil && r.resume() {
			names = append(names, r.name)
		}
	}
	return names
}

func (c *crew) forgive(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.roles {
		r.lastAlive = now
	}
}

func (c *crew) killHung(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.roles {
		silence := now.Sub(r.lastAlive)
		switch {
		case r.silent || c.stopping:
		case !r.isReady && silence >= startLimit:
			c.lose(r, fmt.Sprintf("has not come up, and said nothing for %s", startLimit))
		case r.isReady && silence >= hungAfter:
			c.log.Warn(fmt.Sprintf("%s has not answered for %s; replacing it", r.name, hungAfter))
			r.lastAlive = now
			r.kill(r)
		}
	}
}

// dismiss makes the crew ignore the ends of its roles: they are wanted now.
func (c *crew) dismiss() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
}

// endOutside ends the roles outside the sandbox and waits for them.
func (c *crew) endOutside() {
	c.mu.Lock()
	for _, r := range c.roles {
		if r.outside {
			r.kill(r)
			if r.release != nil {
				r.release()
			}
		}
	}
	c.mu.Unlock()
	c.group.Wait()
}

// inSandbox makes r a process of the sandbox.
func inSandbox(box *sandbox.Sandbox, r *role) *role {
	r.start = func(r *role, files []*os.File) error {
		return box.Run(sandbox.Command{Name: r.name, Path: r.path, Args: r.args, Env: r.env, Log: r.log, Files: files})
	}
	r.kill = func(r *role) {
		// If the sandbox is gone, so is the role.
		_ = box.Signal(r.name, syscall.SIGKILL)
	}
	return r
}
