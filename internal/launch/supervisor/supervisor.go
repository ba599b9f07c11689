// Package supervisor starts the roles of a run, which are processes. It restarts
// roles that die or hang, and cancels the run when one fails for good. Which
// roles a node has, and how each one is started, does not belong here.
//
// docs/glossary.md explains the word role.
package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/node/sandbox"
)

const (
	// maxRestarts bounds the restarts of a role within restartWindow. A restart
	// does not help a role that dies more often.
	maxRestarts   = 3
	restartWindow = 5 * time.Minute
	// patience is the pause before a patient role is started again that has died more often.
	patience = time.Minute
	// disturbance is the time that a role, started again, may need to come up.
	disturbance = 10 * time.Second
	// goPanic is the exit code of a Go program that crashed.
	goPanic = 2
	// hungAfter is the silence after which a role counts as hung. On a node that
	// swaps or is overcommitted, heartbeats can be seconds late.
	hungAfter = 20 * time.Second
	// startLimit bounds the silence of a role that has not been ready yet.
	startLimit = 2 * time.Minute
	// exitNotStarted is the code of a command that did not start, as in a shell.
	exitNotStarted = 127
)

// NotifyFD is the descriptor for the events of a role. The other inherited files
// follow.
const NotifyFD = 3

// Passed is a file that a role inherits.
type Passed struct {
	// Flag is the argument that passes the role the number of the descriptor. It is
	// empty for roles that know it.
	Flag string
	File *os.File
}

// WatchPeriod is the time between two checks of all roles.
const WatchPeriod = 2 * time.Second

// Role describes one process of the cluster and how to start it.
type Role struct {
	Name string
	Path string
	Args []string
	Env  []string
	Log  string
	// NotifyFlag is the argument that passes the role the number of NotifyFD. It is
	// empty for roles that know it.
	NotifyFlag string
	// Passed lists further files that the role inherits.
	Passed []Passed
	// Silent roles do not use the notify protocol. The last line of the log is the reason
	// why one ended with a code other than 0.
	Silent bool
	// Outside roles do not end with the sandbox.
	Outside bool
	// Optional roles are not needed: the run continues without one that fails. A Patient role that
	// has started once is started again after a pause, however often it fails.
	Optional, Patient bool
	// Start starts the process with the given inherited descriptors, from 3 up.
	Start func(r *Role, files []*os.File) error
	// Kill sends the process SIGKILL.
	Kill func(r *Role)
	// Release closes what is kept for the next life of the role. It may be nil.
	Release func()
	// Resume continues a process that a signal stopped, and reports whether it
	// was stopped. It is nil for roles in the sandbox, which does this itself.
	Resume func() bool

	// The supervisor sets the fields below.
	ready   chan struct{}
	isReady bool
	// restarts holds the times of the restarts within restartWindow.
	restarts []time.Time
	// life counts starts, to detect late events of an earlier life.
	life      int
	started   time.Time
	lastAlive time.Time
	fatal     string
	// yields is set when the role ends although nothing is wrong with it. Such an end counts
	// neither as a failure nor as a restart.
	yields bool
	// replaced is set when the supervisor has killed this life of the role.
	replaced bool
	// counts holds the counters that the role reported last, counted the sum of
	// its earlier lives.
	counts, counted map[string]uint64
}

// Supervisor manages the roles of one run. The first role that fails for good
// cancels the run with its error.
type Supervisor struct {
	log    *slog.Logger
	report func(phase string)
	// GiveUp cancels the run.
	GiveUp context.CancelCauseFunc
	// KeepLogs reports whether the logs outlive the run.
	KeepLogs bool
	now      func() time.Time
	after    func(time.Duration, func())

	mu       sync.Mutex
	roles    map[string]*Role
	stopping bool
	// proc is /proc, and self this process there.
	proc, self string
	// oomKills holds the machine's count of kills for lack of memory at the last two checks of
	// all roles: a role may end shortly before or after a check.
	oomKills [2]uint64
	// once maps the names of the running commands of RunOnce to the channels for
	// their statuses.
	once map[string]chan<- sandbox.Status
	// outside counts the goroutines that wait for processes outside the sandbox.
	outside sync.WaitGroup
}

// New returns a supervisor without roles. It calls report for each phase of a
// role's start, and giveUp when a role fails for good.
func New(log *slog.Logger, report func(string), giveUp context.CancelCauseFunc) *Supervisor {
	kills := oomKills("/proc")
	return &Supervisor{log: log, report: report, GiveUp: giveUp, now: time.Now, roles: map[string]*Role{}, once: map[string]chan<- sandbox.Status{},
		after: func(pause time.Duration, do func()) { time.AfterFunc(pause, do) },
		proc:  "/proc", self: strconv.Itoa(os.Getpid()), oomKills: [2]uint64{kills, kills}}
}

// Add starts a role and supervises it. It returns no error for an optional role that does
// not start.
func (s *Supervisor) Add(r *Role) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r.ready = make(chan struct{})
	s.roles[r.Name] = r
	err := s.start(r)
	if err == nil {
		return nil
	}
	delete(s.roles, r.Name) // it has no process that Kill and Resume could act on
	if r.Release != nil {
		r.Release()
	}
	if !r.Optional {
		return fmt.Errorf("start %s: %w", r.Name, err)
	}
	s.failRole(r, fmt.Sprintf("could not be started: %v", err))
	return nil
}

// start starts a role for the first time or again. Its errors do not name the role. The
// caller holds mu.
func (s *Supervisor) start(r *Role) error {
	r.life++
	r.counted = sumCounts(r.counted, r.counts)
	r.counts = nil
	r.fatal, r.yields, r.replaced = "", false, false
	r.started = s.now()
	r.lastAlive = r.started
	files := r.passedFiles()
	if !r.Silent {
		reader, writer, err := os.Pipe()
		if err != nil {
			return err
		}
		defer writer.Close()
		go s.listen(r, r.life, reader)
		files = append([]*os.File{writer}, files...)
	}
	return r.Start(r, files)
}

func (r *Role) passedFiles() (files []*os.File) {
	for _, passed := range r.Passed {
		files = append(files, passed.File)
	}
	return files
}

// Arguments returns Args with the numbers of the descriptors.
func (r *Role) Arguments() []string {
	args, fd := slices.Clone(r.Args), NotifyFD
	if r.NotifyFlag != "" {
		args = append(args, r.NotifyFlag, strconv.Itoa(fd))
	}
	if !r.Silent {
		fd++
	}
	for i, passed := range r.Passed {
		if passed.Flag != "" {
			args = append(args, passed.Flag, strconv.Itoa(fd+i))
		}
	}
	return args
}

// listen reads the events that one life of a role sends.
func (s *Supervisor) listen(r *Role, life int, reader *os.File) {
	defer reader.Close()
	// The pipe is closed when the process ends. Ended receives the exit status.
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
		case notify.KindYield:
			r.fatal, r.yields = event.Error, true
		}
	})
}

// Await waits until a role is ready for the first time. It returns nil then, or the cause
// of ctx if that ends earlier. A role that was not added is an error.
func (s *Supervisor) Await(ctx context.Context, name string) error {
	s.mu.Lock()
	r := s.roles[name]
	s.mu.Unlock()
	if r == nil {
		return fmt.Errorf("wait for %s: it was not started", name)
	}
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Ended records that a process in the sandbox or a role outside it has ended. It
// starts a role again unless the role failed for good, and passes the status of a
// command to the caller of RunOnce.
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
	} else if last := tail(r.Log, 1); r.Silent && status.Code != 0 && len(last) > 0 {
		what += ": " + last[0]
	}
	now := s.now()
	r.restarts = slices.DeleteFunc(r.restarts, func(at time.Time) bool { return now.Sub(at) > restartWindow })
	switch {
	case r.yields:
	case !r.Silent && !r.isReady && status.Signal == 0 && !s.disturbed(r):
		// A role that ends before it was ever ready would end again.
		s.failRole(r, what)
		return
	case len(r.restarts) >= maxRestarts:
		s.failRole(r, fmt.Sprintf("%s, after %d restarts within %s", what, maxRestarts, restartWindow))
		return
	}
	if !r.yields {
		r.restarts = append(r.restarts, now)
	}
	short, why := !r.replaced && s.shortOfMemory(status), ""
	if short {
		why = " (the kernel has just killed processes for lack of memory, of this job or of another one)"
	}
	s.log.Warn(fmt.Sprintf("%s %s; starting it again%s", r.Name, what, why))
	if err := s.start(r); err != nil {
		s.failRole(r, fmt.Sprintf("%s and could not be started again: %v", what, err))
	}
	if short {
		go s.nameLargestPod()
	}
}

// disturbed reports whether another role was started again while r came up, or shortly
// before. r may need that role, as the kubelet needs containerd.
func (s *Supervisor) disturbed(r *Role) bool {
	for _, other := range s.roles {
		if n := len(other.restarts); other != r && n > 0 && r.started.Sub(other.restarts[n-1]) < disturbance {
			return true
		}
	}
	return false
}

// failRole ends the run, or continues it without an optional role. The caller holds mu.
func (s *Supervisor) failRole(r *Role, what string) {
	switch {
	case r.Patient && s.roles[r.Name] == r:
		s.log.Warn(fmt.Sprintf("%s %s; starting it again in %s", r.Name, what, patience))
		s.startLater(r)
		return
	case r.Optional:
		delete(s.roles, r.Name)
		s.log.Warn(fmt.Sprintf("%s %s; the run goes on without it", r.Name, what))
		return
	}
	s.GiveUp(failedCode(s.FailedError(r.Name, what, r.Log)))
}

// startLater starts a role again after a pause. The caller holds mu.
func (s *Supervisor) startLater(r *Role) {
	life := r.life
	s.after(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.stopping || r.life != life {
			return
		}
		if err := s.start(r); err != nil {
			s.failRole(r, fmt.Sprintf("could not be started again: %v", err))
		}
	})
}

// Failed records that the process of a role or a command of RunOnce could not be
// started. The status of such a command has the exit code 127.
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

// Resumed records that the process of a role was stopped by a signal and has been
// continued.
func (s *Supervisor) Resumed(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, known := s.roles[name]; known && !s.stopping {
		s.log.Warn(name + " was stopped by a signal, and is continued")
		r.lastAlive = s.now()
	}
}

// Watch resumes stopped roles and replaces hung ones until ctx ends.
func (s *Supervisor) Watch(ctx context.Context) {
	ticker := time.NewTicker(WatchPeriod)
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

// look resumes stopped roles and replaces hung ones. last is the time of the
// previous call. It returns the current time, for the next call.
func (s *Supervisor) look(last time.Time) time.Time {
	now := s.now()
	// If this process itself was stopped, it has not read any heartbeats, and
	// their absence means nothing.
	if now.Sub(last) > 2*WatchPeriod {
		s.resetHeartbeats(now)
	}
	for _, name := range s.resume() {
		s.Resumed(name)
	}
	s.killHung(now)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oomKills = [2]uint64{s.oomKills[1], oomKills(s.proc)}
	return now
}

// resume continues stopped roles and returns their names.
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
			r.replaced = true
			r.Kill(r)
		}
	}
}

// IgnoreExits ignores all exits from now on, because the run ends.
func (s *Supervisor) IgnoreExits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = true
}

// Go calls wait in a new goroutine. wait returns when a process outside the sandbox
// has ended; EndOutside waits for that.
func (s *Supervisor) Go(wait func()) { s.outside.Go(wait) }

// EndOutside kills the roles outside the sandbox and returns when they have ended.
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
	s.outside.Wait()
}

// InSandbox sets Start and Kill of r so that it runs in the sandbox, and returns r.
func InSandbox(box *sandbox.Sandbox, r *Role) *Role {
	r.Start = func(r *Role, files []*os.File) error {
		return box.Run(sandbox.Command{Name: r.Name, Path: r.Path, Args: r.Arguments(), Env: r.Env, Log: r.Log, Files: files})
	}
	r.Kill = func(r *Role) {
		// If the sandbox is gone, so is the role.
		_ = box.Signal(r.Name, syscall.SIGKILL)
	}
	return r
}

// RunOnce starts a command in the sandbox, which is not restarted, and returns a
// channel that receives its exit status. The error says that the sandbox did not
// accept the command.
func (s *Supervisor) RunOnce(box *sandbox.Sandbox, command sandbox.Command) (<-chan sandbox.Status, error) {
	status := make(chan sandbox.Status, 1)
	s.mu.Lock()
	s.once[command.Name] = status
	s.mu.Unlock()
	return status, box.Run(command)
}

// Describe adds the state and the counters of all roles to page.
func (s *Supervisor) Describe(page *metrics.Page) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, r := range s.roles {
		ready := 0.
		if r.isReady {
			ready = 1
		}
		if !r.Silent {
			page.Add("berth_role_ready", ready, "role", name)
		}
		page.Add("berth_role_restarts_total", float64(r.life-1), "role", name)
		page.AddCounts(sumCounts(r.counted, r.counts))
	}
}

// sumCounts adds the counters of a role's earlier lives to its current counters.
// Gauges are not added: their values ended with the earlier life.
func sumCounts(earlier, now map[string]uint64) map[string]uint64 {
	sum := maps.Clone(now)
	if sum == nil {
		sum = map[string]uint64{}
	}
	for name, n := range earlier {
		if strings.HasSuffix(metrics.FamilyOf(name), "_total") {
			sum[name] += n
		}
	}
	return sum
}

// Status converts the exit status of a process that is not in the sandbox.
func Status(state *os.ProcessState) sandbox.Status {
	status, ok := state.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return sandbox.Status{Signal: status.Signal()}
	}
	return sandbox.Status{Code: state.ExitCode()}
}

// ReapFDHolders reaps the descriptor holders of an outside role that has just
// died, once they end: they have become children of this process. It finds them by
// argument, the last argument of their command lines. EndOutside waits for them.
func (s *Supervisor) ReapFDHolders(argument string) {
	children, err := linux.Children(os.Getpid())
	if err != nil {
		return // they stay zombies until this process ends
	}
	for _, child := range children {
		line, err := os.ReadFile("/proc/" + strconv.Itoa(child) + "/cmdline")
		if err == nil && bytes.HasSuffix(line, []byte("\x00"+argument+"\x00")) {
			s.outside.Go(func() {
				ended := make(chan struct{})
				go sandbox.KeepRunning(child, ended) // a stopped one cannot end
				_ = linux.AwaitChild(child)
				close(ended)
			})
		}
	}
}
