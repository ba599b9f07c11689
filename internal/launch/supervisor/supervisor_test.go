package supervisor

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/metrics"
	"berth.dev/berth/internal/base/notify"
	"berth.dev/berth/internal/node/sandbox"
)

// stage is a supervisor whose roles are not processes, and whose clock does not
// advance by itself.
type stage struct {
	*Supervisor
	clock  time.Time
	starts int
	kills  int
	// lost is the error that canceled the run.
	lost error
	// notifiers holds the roles' ends of the pipes, one for each start.
	notifiers []*notify.Notifier
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{clock: time.Unix(1000, 0)}
	s.Supervisor = New(slog.New(slog.DiscardHandler), func(string) {}, func(err error) { s.lost = err })
	s.now = func() time.Time { return s.clock }
	return s
}

// play adds a role that keeps its end of the notify pipe open until the test
// ends.
func (s *stage) play(t *testing.T, r *Role) *Role {
	t.Helper()
	r.Log = filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(r.Log, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Start = func(r *Role, files []*os.File) error {
		s.starts++
		if r.Silent {
			return nil
		}
		// The supervisor closes its copy.
		fd, err := unix.FcntlInt(files[0].Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file := os.NewFile(uintptr(fd), "notify")
		t.Cleanup(func() { file.Close() })
		s.notifiers = append(s.notifiers, notify.NewWriter(file))
		return nil
	}
	r.Kill = func(*Role) { s.kills++ }
	if err := s.Add(r); err != nil {
		t.Fatal(err)
	}
	return r
}

// comeUp makes the latest life of a role ready.
func (s *stage) comeUp(t *testing.T, r *Role) {
	t.Helper()
	s.notifiers[len(s.notifiers)-1].Ready()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := s.Await(ctx, r.Name); err != nil {
		t.Fatalf("await ready role: %v", err)
	}
}

func killed() sandbox.Status { return sandbox.Status{Signal: unix.SIGKILL} }

func TestRoleThatDiesIsStartedAgain(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "node"})
	s.comeUp(t, r)
	s.Ended("node", killed())
	if s.starts != 2 || s.lost != nil {
		t.Fatalf("%d starts and %v, want 2 and no failure", s.starts, s.lost)
	}
}

func TestUnknownRoleIsNotAwaited(t *testing.T) {
	s := newStage(t)
	if err := s.Await(t.Context(), "containerd"); err == nil || !strings.Contains(err.Error(), "containerd") {
		t.Errorf("the wait for a role that was not added ends with %v", err)
	}
}

func TestRoleThatFailsToComeUpEndsTheRun(t *testing.T) {
	s := newStage(t)
	s.play(t, &Role{Name: "control"})
	s.Ended("control", sandbox.Status{Code: 1})
	if s.starts != 1 || s.lost == nil {
		t.Fatalf("%d starts and %v, want 1 and a failure", s.starts, s.lost)
	}
	for _, part := range []string{"control", "exit code 1", "two"} {
		if !strings.Contains(s.lost.Error(), part) {
			t.Errorf("%q lacks %q", s.lost, part)
		}
	}
	if code := exitcode.Of(s.lost); code != exitcode.Internal {
		t.Errorf("exit code %d, want %d", code, exitcode.Internal)
	}
}

func TestInotifyShortageIsReportedAsUnavailable(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "containerd"})
	if err := os.WriteFile(r.Log, []byte("failed to create fsnotify watcher: too many open files\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Ended("containerd", sandbox.Status{Code: 1})
	if code := exitcode.Of(s.lost); code != exitcode.Unavailable || !strings.Contains(s.lost.Error(), "fs.inotify.max_user_instances") {
		t.Errorf("%v with exit code %d, want %d and the remedy", s.lost, code, exitcode.Unavailable)
	}
}

func TestCrashCauseIsReported(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "node"})
	stacks := strings.Repeat("main.go:1\n", 2*tailBytes/10)
	if err := os.WriteFile(r.Log, []byte("fine\npanic: no such thing\n\ngoroutine 1 [running]:\n"+stacks), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Ended("node", sandbox.Status{Code: 2})
	if s.lost == nil || !strings.Contains(s.lost.Error(), "exit code 2: panic: no such thing") {
		t.Errorf("the run was given up with %v", s.lost)
	}
}

func TestRoleKilledWhileComingUpIsStartedAgain(t *testing.T) {
	s := newStage(t)
	s.play(t, &Role{Name: "control"})
	s.Ended("control", killed())
	if s.starts != 2 || s.lost != nil {
		t.Fatalf("%d starts and %v, want 2 and no failure", s.starts, s.lost)
	}
}

func TestRoleThatFailsBesideRestartedOneIsStartedAgain(t *testing.T) {
	for _, test := range []struct {
		name          string
		before, after time.Duration
		starts        int
	}{
		{"while it comes up", 0, time.Second, 4},
		{"shortly before", time.Second, 0, 4},
		{"long before", time.Minute, 0, 3},
	} {
		s := newStage(t)
		s.play(t, &Role{Name: "containerd"})
		if test.after == 0 {
			s.Ended("containerd", killed())
		}
		s.clock = s.clock.Add(test.before)
		s.play(t, &Role{Name: "node"})
		s.clock = s.clock.Add(test.after)
		if test.after > 0 {
			s.Ended("containerd", killed())
		}
		s.Ended("node", sandbox.Status{Code: 1})
		if s.starts != test.starts || (s.lost != nil) != (test.starts == 3) {
			t.Errorf("%s: %d starts and %v, want %d", test.name, s.starts, s.lost, test.starts)
		}
	}
}

func TestRestartsAreBounded(t *testing.T) {
	s := newStage(t)
	s.play(t, &Role{Name: "dns", Silent: true})
	for range maxRestarts {
		s.Ended("dns", killed())
	}
	if s.lost != nil {
		t.Fatalf("given up after %d ends: %v", maxRestarts, s.lost)
	}
	s.Ended("dns", killed())
	if s.lost == nil || !strings.Contains(s.lost.Error(), "restarts") {
		t.Fatalf("after %d ends: %v, want a failure that tells of the restarts", maxRestarts+1, s.lost)
	}
	if s.starts != 1+maxRestarts {
		t.Errorf("%d starts, want %d", s.starts, 1+maxRestarts)
	}
}

// TestYieldingRoleIsStartedAgain: controllers that lose their lease again and again on a busy
// machine do not end the run.
// Pods wait for the role that submits pilots, so the run never goes on without it.
func TestPatientRoleIsStartedAgainAfterPauses(t *testing.T) {
	s := newStage(t)
	var later []func()
	s.after = func(_ time.Duration, do func()) { later = append(later, do) }
	r := s.play(t, &Role{Name: "elastic", Silent: true, Optional: true, Patient: true})
	for range 3 + maxRestarts {
		s.Ended("elastic", killed())
		for len(later) > 0 {
			next := later[0]
			later = later[1:]
			next()
			next() // a role that runs is not started a second time
		}
	}
	if s.starts != 4+maxRestarts || s.lost != nil {
		t.Errorf("%d starts, want %d; %v", s.starts, 4+maxRestarts, s.lost)
	}
	start, unable := r.Start, 2
	r.Start = func(r *Role, files []*os.File) error {
		if unable--; unable >= 0 {
			return errors.New("no memory")
		}
		return start(r, files)
	}
	s.Ended("elastic", killed())
	for len(later) > 0 {
		next := later[0]
		later = later[1:]
		next()
	}
	if s.starts != 5+maxRestarts {
		t.Errorf("%d starts after two that failed, want %d", s.starts, 5+maxRestarts)
	}
	if s.Add(&Role{Name: "never", Silent: true, Patient: true, Start: func(*Role, []*os.File) error { return errors.New("no memory") }}) == nil {
		t.Error("the run goes on without a patient role that never started")
	}
	s.Ended("elastic", killed())
	s.IgnoreExits()
	later[0]()
	if s.starts != 5+maxRestarts {
		t.Error("the role is started while the run ends")
	}
}

func TestYieldingRoleIsStartedAgain(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "controllers"})
	for range 3 * maxRestarts {
		r.yields, r.fatal = true, "their lease was not renewed"
		s.Ended("controllers", sandbox.Status{Code: 1})
	}
	if s.lost != nil || s.starts != 1+3*maxRestarts {
		t.Errorf("%d starts, given up: %v", s.starts, s.lost)
	}
}

func TestRestartsAreForgottenOverTime(t *testing.T) {
	s := newStage(t)
	s.play(t, &Role{Name: "dns", Silent: true})
	for range 3 * maxRestarts {
		s.Ended("dns", killed())
		s.clock = s.clock.Add(restartWindow / 2)
	}
	if s.lost != nil {
		t.Fatalf("given up: %v", s.lost)
	}
}

func TestRoleThatCannotBeStartedAgainEndsTheRun(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "dns", Silent: true})
	r.Start = func(*Role, []*os.File) error { return errors.New("no room") }
	s.Ended("dns", killed())
	if s.lost == nil || !strings.Contains(s.lost.Error(), "no room") {
		t.Fatalf("got %v, want the reason", s.lost)
	}
}

// A role outside the sandbox has no process after a failed start, so nothing may kill or
// resume it. What it keeps is released.
func TestRoleThatDoesNotStartIsNoRole(t *testing.T) {
	for _, optional := range []bool{false, true} {
		var said bytes.Buffer
		s := newStage(t)
		s.log = slog.New(slog.NewTextHandler(&said, nil))
		var process *os.Process
		released := 0
		err := s.Add(&Role{
			Name: "layers", Outside: true, Optional: optional,
			Start:   func(*Role, []*os.File) error { return errors.New("no room") },
			Kill:    func(*Role) { _ = process.Signal(unix.Signal(process.Pid)) },
			Resume:  func() bool { return process.Pid > 0 },
			Release: func() { released++ },
		})
		if optional && err != nil || !optional && (err == nil || err.Error() != "start layers: no room") {
			t.Errorf("optional %t: %v", optional, err)
		}
		if want := "layers could not be started: no room; the run goes on without it"; strings.Contains(said.String(), want) != optional {
			t.Errorf("optional %t: said %q", optional, said.String())
		}
		s.look(s.clock)
		s.EndOutside()
		if released != 1 || s.lost != nil {
			t.Errorf("optional %t: released %d times, given up: %v", optional, released, s.lost)
		}
	}
}

func TestHungRoleIsReplaced(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "node"})
	s.comeUp(t, r)
	last := s.clock
	for range hungAfter / WatchPeriod {
		if s.kills > 0 {
			t.Fatalf("killed after %s", s.clock.Sub(last))
		}
		s.clock = s.clock.Add(WatchPeriod)
		last = s.look(last)
	}
	if s.kills != 1 {
		t.Fatalf("killed %d times after %s of silence, want once", s.kills, hungAfter)
	}
	// The role gets time to become ready again.
	s.clock = s.clock.Add(WatchPeriod)
	s.look(last)
	if s.kills != 1 {
		t.Errorf("killed again at once")
	}
}

func TestSilenceAfterStopIsForgiven(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "node"})
	s.comeUp(t, r)
	last := s.clock
	s.clock = s.clock.Add(time.Hour)
	s.look(last)
	if s.kills != 0 {
		t.Fatal("a role was killed because the supervisor did not run")
	}
}

func TestRoleThatNeverComesUpEndsTheRun(t *testing.T) {
	s := newStage(t)
	s.play(t, &Role{Name: "containerd"})
	last := s.clock
	for s.lost == nil && s.clock.Sub(time.Unix(1000, 0)) < 2*startLimit {
		s.clock = s.clock.Add(WatchPeriod)
		last = s.look(last)
	}
	if s.lost == nil || !strings.Contains(s.lost.Error(), "containerd") {
		t.Fatalf("got %v, want a failure that names the role", s.lost)
	}
}

func TestStoppedRoleIsContinued(t *testing.T) {
	s := newStage(t)
	stops := 1
	s.play(t, &Role{Name: "net", Silent: true, Resume: func() bool { stops--; return stops == 0 }})
	s.look(s.clock)
	if stops != 0 || s.starts != 1 || s.kills != 0 {
		t.Fatalf("%d checks left, %d starts, %d kills", stops, s.starts, s.kills)
	}
}

func TestLateMessagesOfEarlierLifeAreIgnored(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "control"})
	s.Ended("control", killed())
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	notify.NewWriter(writer).Ready()
	writer.Close()
	s.listen(r, r.life-1, reader)
	if r.isReady {
		t.Fatal("the words of a dead role made its successor ready")
	}
}

func TestDismissedRolesMayEnd(t *testing.T) {
	s := newStage(t)
	s.play(t, &Role{Name: "node"})
	s.IgnoreExits()
	s.Ended("node", killed())
	if s.starts != 1 || s.lost != nil {
		t.Fatalf("%d starts and %v after dismissal", s.starts, s.lost)
	}
}

func TestRoleReportsFailure(t *testing.T) {
	s := newStage(t)
	r := s.play(t, &Role{Name: "control"})
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	notify.NewWriter(writer).Fatal(errors.New("bind port 6443"))
	writer.Close()
	s.listen(r, r.life, reader)
	s.Ended("control", sandbox.Status{Code: 1})
	if s.lost == nil || !strings.Contains(s.lost.Error(), "bind port 6443") {
		t.Fatalf("got %v, want the role's own words", s.lost)
	}
}

// The user reads why a role without a notify pipe failed, although its log goes with the
// run.
func TestSilentRoleHasItsReasonInItsLog(t *testing.T) {
	var said bytes.Buffer
	s := newStage(t)
	s.log = slog.New(slog.NewTextHandler(&said, nil))
	s.play(t, &Role{Name: "slurm-jobs", Silent: true, Optional: true})
	for range 1 + maxRestarts {
		s.Ended("slurm-jobs", sandbox.Status{Code: 1})
	}
	for _, want := range []string{
		"slurm-jobs ended: exit code 1: two; starting it again",
		"slurm-jobs ended: exit code 1: two, after 3 restarts within 5m0s; the run goes on without it",
	} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("lacks %q: %s", want, &said)
		}
	}
	said.Reset()
	s.play(t, &Role{Name: "slurm-jobs", Silent: true, Optional: true})
	s.Ended("slurm-jobs", killed())
	if strings.Contains(said.String(), "two") {
		t.Errorf("a role that was killed has no reason: %s", &said)
	}
}

func TestSumCounts(t *testing.T) {
	open := metrics.Count("berth_egress_connections", "protocol", "tcp")
	total := metrics.Count("berth_egress_connections_total", "protocol", "tcp")
	got := sumCounts(map[string]uint64{open: 2, total: 7}, map[string]uint64{open: 1, total: 3})
	if want := map[string]uint64{open: 1, total: 10}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A role learns the numbers of its descriptors, which follow the one for events.
func TestArgumentsNameTheDescriptors(t *testing.T) {
	passed := []Passed{{Flag: "--listener-fd"}, {}, {Flag: "--state-fd"}}
	for want, r := range map[string]*Role{
		"control --notify-fd 3 --listener-fd 4 --state-fd 6": {Args: []string{"control"}, NotifyFlag: "--notify-fd", Passed: passed},
		"balancer --listener-fd 4 --state-fd 6":              {Args: []string{"balancer"}, Passed: passed},
		"silent --listener-fd 3 --state-fd 5":                {Args: []string{"silent"}, Silent: true, Passed: passed},
	} {
		if got := strings.Join(r.Arguments(), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
