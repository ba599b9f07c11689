package allocation

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/job/slurm"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.Local)

// newAllocation returns an allocation whose controller answers with the given
// end.
func newAllocation(end string) *Allocation {
	return &Allocation{
		Job: slurm.Job{ID: "7"},
		log: slog.New(slog.DiscardHandler),
		now: func() time.Time { return noon },
		Ask: func(_ context.Context, command ...string) ([]byte, error) {
			if command[len(command)-1] == "config" {
				return []byte("KillWait                = 30 sec\n"), nil
			}
			return []byte("JobId=7 EndTime=" + end + " Partition=main\n"), nil
		},
	}
}

func TestNearlyFinishedJobIsRefused(t *testing.T) {
	a := newAllocation("2026-01-01T12:00:03")
	var given error
	a.Inquire(t.Context(), func(err error) { given = err })
	if exitcode.Of(given) != exitcode.Config {
		t.Fatalf("got %v, want a refusal", given)
	}
	a = newAllocation("2026-01-01T12:01:00")
	given = nil
	a.Inquire(t.Context(), func(err error) { given = err })
	if given != nil {
		t.Fatalf("a job with a minute left is refused: %v", given)
	}
}

// inquire repeats its question to a controller that was too busy at the start.
// Otherwise --grace would have no effect.
func TestSlurmQueryIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAllocation("2026-01-01T14:00:00")
		answer := a.Ask
		began := time.Now()
		a.Ask = func(ctx context.Context, command ...string) ([]byte, error) {
			if time.Since(began) < askAgain {
				return nil, errors.New("no answer within 3s")
			}
			return answer(ctx, command...)
		}
		a.Inquire(t.Context(), func(err error) { t.Error(err) })
		if a.KnownEnd().IsZero() || a.killWait != 30*time.Second {
			t.Errorf("the end %v and KillWait %s are not known", a.KnownEnd(), a.killWait)
		}
	})
}

// A running job that is requeued has one more restart at once.
func TestRequeuedJobStartsAgain(t *testing.T) {
	for job, want := range map[string]bool{
		"JobState=COMPLETING Restarts=3 EndTime=2026-01-01T12:00:00":                                         true,
		"JobState=COMPLETING Restarts=2 EndTime=2026-01-01T12:00:00":                                         false,
		"JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1": true,
	} {
		a := newAllocation("")
		a.Job.Restarts, a.killWait = 2, 3*time.Second
		a.Ask = func(_ context.Context, command ...string) ([]byte, error) {
			if slices.Contains(command, "partition") {
				return []byte("PartitionName=low GraceTime=10 PreemptMode=REQUEUE\n"), nil
			}
			return []byte("JobId=7 " + job + "\n"), nil
		}
		a.GraceNow(t.Context(), syscall.SIGTERM)
		if got := a.MayStartAgain(); got != want {
			t.Errorf("%s: starts again: %v", job, got)
		}
	}
	if (*Allocation)(nil).MayStartAgain() {
		t.Error("a run outside of Slurm starts again")
	}
}

// While many jobs are preempted, slurmctld may not answer. Then nobody knows whether this job starts
// again, and pods on nodes of other jobs must not end for that.
func TestJobMayStartAgainWithoutAnswer(t *testing.T) {
	const preempted = "JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1 Partition=low"
	none := errors.New("no answer within 3s")
	for _, test := range []struct {
		name      string
		signal    syscall.Signal
		job, last string
		partition error
		want      bool
	}{
		{"no answer", syscall.SIGTERM, "", "", nil, true},
		{"nobody asks", syscall.SIGINT, "", "", nil, false},
		{"the partition is not known", syscall.SIGTERM, preempted, preempted, none, true},
		{"an answer to the second question", syscall.SIGTERM, "", "JobState=CANCELLED EndTime=2026-01-01T12:00:00", nil, false},
		{"no answer to the second question", syscall.SIGTERM, "JobState=CANCELLED EndTime=2026-01-01T12:00:00", "", nil, false},
	} {
		a := newAllocation("")
		a.killWait = 3 * time.Second
		job := test.job
		a.Ask = func(_ context.Context, command ...string) ([]byte, error) {
			if slices.Contains(command, "partition") {
				return nil, test.partition
			}
			if job == "" {
				return nil, none
			}
			return []byte("JobId=7 " + job + "\n"), nil
		}
		a.GraceNow(t.Context(), test.signal)
		job = test.last
		a.GraceNow(t.Context(), test.signal)
		if got := a.MayStartAgain(); got != test.want {
			t.Errorf("%s: may start again: %v", test.name, got)
		}
	}
}

// Slurm sends the same signal ahead of the end, when more time is left.
func TestGraceBeforeEnd(t *testing.T) {
	for _, test := range []struct {
		name, job string
		want      time.Duration
		preempted bool
	}{
		{"cancelled", "JobState=COMPLETING EndTime=2026-01-01T12:00:00", 2 * time.Second, false},
		{"signalled ahead", "JobState=RUNNING EndTime=2026-01-01T12:02:00 PreemptTime=None Requeue=1 BatchFlag=1", 119 * time.Second, false},
		{"no limit", "JobState=RUNNING EndTime=Unknown PreemptTime=None", noLimit, false},
		{"no limit, and cancelled", "JobState=COMPLETING EndTime=Unknown", 2 * time.Second, false},
		{"no limit, and preempted from a partition that is not known", "JobState=RUNNING EndTime=Unknown PreemptTime=2026-01-01T11:59:59 Partition=hidden", 2 * time.Second, false},
		{"no limit, while Slurm signals it", "JobState=SIGNALING EndTime=Unknown PreemptTime=None", noLimit, false},
		{"no limit, and suspended", "JobState=SUSPENDED EndTime=Unknown PreemptTime=None", 2 * time.Second, false},
		{"no limit, and requeued", "JobState=PENDING EndTime=Unknown PreemptTime=None", 2 * time.Second, false},
		{"no limit, and preempted by QOS", "JobState=RUNNING EndTime=Unknown PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1 Partition=main", 2 * time.Second, false},
		{"an end that is not known", "JobState=RUNNING", 2 * time.Second, false},
		{"preempted", "JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1", 9 * time.Second, true},
		{"preempted just now", "JobState=SIGNALING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1", 9 * time.Second, true},
		{"preempted without a limit", "JobState=RUNNING EndTime=Unknown PreemptTime=2026-01-01T11:59:59 Requeue=1 BatchFlag=1 Partition=low", 8 * time.Second, true},
		{"preempted, of a partition that is not known", "JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1 Partition=hidden", 9 * time.Second, false},
		{"preempted for good", "JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=0 BatchFlag=1", 9 * time.Second, false},
		{"preempted without a script", "JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=0", 9 * time.Second, false},
	} {
		a := newAllocation("")
		a.killWait = 3 * time.Second
		a.Ask = func(_ context.Context, command ...string) ([]byte, error) {
			if slices.Contains(command, "hidden") {
				return nil, errors.New("no answer within 3s")
			}
			if slices.Contains(command, "main") {
				return []byte("PartitionName=main GraceTime=0 PreemptMode=OFF\n"), nil
			}
			if slices.Contains(command, "partition") {
				return []byte("PartitionName=low GraceTime=10 PreemptMode=REQUEUE\n"), nil
			}
			return []byte("JobId=7 " + test.job + "\n"), nil
		}
		if got := a.GraceNow(t.Context(), syscall.SIGTERM); got != test.want || a.preempted != test.preempted {
			t.Errorf("%s: %s, requeued %v; want %s, %v", test.name, got, a.preempted, test.want, test.preempted)
		}
	}
}

// At the step's own limit, slurmd kills it KillWait after SIGTERM, while the job goes on.
func TestGraceBeforeEndOfStep(t *testing.T) {
	const unlimited = "JobState=RUNNING EndTime=Unknown PreemptTime=None"
	for _, test := range []struct {
		name, step, job string
		want            time.Duration
		preempted       bool
	}{
		{"no limit", "StartTime=2026-01-01T11:00:00 TimeLimit=UNLIMITED", unlimited, noLimit, false},
		{"its limit is over", "StartTime=2026-01-01T11:58:00 TimeLimit=00:02:00", unlimited, 2 * time.Second, false},
		{"signalled ahead", "StartTime=2025-12-31T11:01:00 TimeLimit=1-01:00:00", unlimited, 59 * time.Second, false},
		{"the job ends before", "StartTime=2026-01-01T11:58:00 TimeLimit=01:00:00", "JobState=RUNNING EndTime=2026-01-01T12:01:00 PreemptTime=None", 59 * time.Second, false},
		{"the job ends later", "StartTime=2026-01-01T11:58:00 TimeLimit=00:03:00", "JobState=RUNNING EndTime=2026-01-01T13:00:00 PreemptTime=None", 59 * time.Second, false},
		{"cancelled", "StartTime=2026-01-01T11:58:00 TimeLimit=01:00:00", "JobState=COMPLETING EndTime=2026-01-01T12:00:00", 2 * time.Second, false},
		{"preempted from a partition that is not known", "StartTime=2026-01-01T11:58:00 TimeLimit=01:00:00", "JobState=RUNNING EndTime=Unknown PreemptTime=2026-01-01T11:59:59 Partition=hidden", 2 * time.Second, false},
		{"not known", "", unlimited, 2 * time.Second, false},
		{"without its limit", "StartTime=2026-01-01T11:58:00", unlimited, 2 * time.Second, false},
		{"not known, and preempted", "", "JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1 Partition=low", 2 * time.Second, true},
	} {
		a := newAllocation("")
		a.killWait = 3 * time.Second
		a.Job.Place, a.Job.StepID = slurm.PlaceTask, 2
		a.Ask = func(_ context.Context, command ...string) ([]byte, error) {
			switch {
			case slices.Contains(command, "hidden"), slices.Contains(command, "7.2") && test.step == "":
				return nil, errors.New("no answer within 3s")
			case slices.Contains(command, "7.2"):
				return []byte("StepId=7.2 UserId=1000 " + test.step + " State=RUNNING Partition=main NodeList=n1\n"), nil
			case slices.Contains(command, "partition"):
				return []byte("PartitionName=low GraceTime=10 PreemptMode=REQUEUE\n"), nil
			}
			return []byte("JobId=7 " + test.job + "\n"), nil
		}
		if got := a.GraceNow(t.Context(), syscall.SIGTERM); got != test.want || a.preempted != test.preempted {
			t.Errorf("%s: %s, requeued %v; want %s, %v", test.name, got, a.preempted, test.want, test.preempted)
		}
	}
}

// With --grace, the workload ends before the job or its step does, whichever ends first.
func TestGraceCountsFromEarlierEnd(t *testing.T) {
	const clock = "2006-01-02T15:04:05"
	for _, test := range []struct {
		name, step string
		// silent is the time without answers about the step.
		silent time.Duration
		share  int
		want   time.Duration
		says   string
	}{
		{"no limit of the step", "UNLIMITED", 0, 0, time.Hour - 20*time.Second, "the job's time is over in 20s"},
		{"the step ends before", "00:10:00", 0, 0, 10*time.Minute - 20*time.Second, "the step's time is over in 20s"},
		{"the job ends before", "02:00:00", 0, 0, time.Hour - 20*time.Second, "the job's time is over in 20s"},
		{"no answer at first", "00:10:00", 5 * time.Minute, 0, 10*time.Minute - 20*time.Second, "the step's time is over in 20s"},
		{"no answer", "00:10:00", 2 * time.Hour, 0, time.Hour - 20*time.Second, "the job's time is over in 20s"},
		{"a share of a short step", "00:01:00", 0, 4, 45 * time.Second, "the step's time is over in 15s"},
		{"a share of a long step", "00:10:00", 0, 4, 10*time.Minute - 20*time.Second, "the step's time is over in 20s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAllocation("")
			a.Early, a.EarlyShare, a.now = 20*time.Second, test.share, time.Now
			a.Job.Place, a.Job.StepID = slurm.PlaceTask, 2
			began := time.Now()
			config := a.Ask
			a.Ask = func(ctx context.Context, command ...string) ([]byte, error) {
				switch {
				case slices.Contains(command, "7.2") && time.Since(began) < test.silent:
					return nil, errors.New("no answer within 3s")
				case slices.Contains(command, "7.2"):
					return []byte("StepId=7.2 StartTime=" + began.Local().Format(clock) + " TimeLimit=" + test.step + " State=RUNNING\n"), nil
				case slices.Contains(command, "job"):
					return []byte("JobId=7 JobState=RUNNING EndTime=" + began.Add(time.Hour).Local().Format(clock) + " PreemptTime=None\n"), nil
				}
				return config(ctx, command...)
			}
			var given error
			a.Inquire(t.Context(), func(err error) { given = err })
			if want := test.want - takeDownTime; time.Since(began).Round(time.Second) != want.Round(time.Second) {
				t.Errorf("%s: after %s, want %s", test.name, time.Since(began), want)
			}
			if exitcode.Of(given) != exitcode.TimeLimit || !strings.HasPrefix(given.Error(), test.says) {
				t.Errorf("%s: %v; want %s", test.name, given, test.says)
			}
			if left, _ := a.Left(); !a.KnownEnd().Equal(began.Add(time.Hour)) {
				t.Errorf("%s: the job has %s left", test.name, left)
			}
		})
	}
}

// The time for Slurm's answer is a part of KillWait.
func TestGraceAfterSlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAllocation("")
		a.killWait, a.now = 31*time.Second, time.Now
		a.Ask = func(context.Context, ...string) ([]byte, error) {
			time.Sleep(3 * time.Second)
			return nil, errors.New("no answer within 3s")
		}
		if got := a.GraceNow(t.Context(), syscall.SIGTERM); got != 27*time.Second {
			t.Errorf("%s, want 27s", got)
		}
	})
}

// A further SIGTERM makes berth ask Slurm again. The workload may end meanwhile, which
// cuts that question short.
func TestPreemptedJobIsRequeuedAfterQuestionThatWasCutShort(t *testing.T) {
	a := newAllocation("")
	partition, requeued := error(nil), false
	a.Ask = func(_ context.Context, command ...string) ([]byte, error) {
		switch {
		case slices.Contains(command, "requeue"):
			requeued = true
			return nil, nil
		case slices.Contains(command, "partition"):
			return []byte("PartitionName=low GraceTime=10 PreemptMode=REQUEUE\n"), partition
		}
		return []byte("JobId=7 JobState=RUNNING EndTime=2026-01-01T12:00:10 PreemptTime=2026-01-01T12:00:00 Requeue=1 BatchFlag=1 Partition=low\n"), nil
	}
	a.GraceNow(t.Context(), syscall.SIGTERM)
	partition = context.Canceled
	a.GraceNow(t.Context(), syscall.SIGTERM)
	if a.Requeue(); !requeued {
		t.Error("the preempted job does not start again")
	}
}

// A job that goes on after a signal, or whose --grace has begun, may be cancelled at
// once. That SIGTERM then counts as the same signal.
func TestCancelledInGrace(t *testing.T) {
	const cancelled = "JobState=COMPLETING EndTime=2026-01-01T12:00:00"
	for _, test := range []struct {
		name  string
		first syscall.Signal
		job   string
		ends  bool
	}{
		{"the same signal", syscall.SIGTERM, "JobState=RUNNING EndTime=Unknown PreemptTime=None", false},
		{"cancelled", syscall.SIGTERM, cancelled, true},
		{"cancelled in --grace", 0, cancelled, true},
		{"cancelled after SIGHUP", syscall.SIGHUP, cancelled, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAllocation("")
			a.killWait = 3 * time.Second
			a.Ask = func(context.Context, ...string) ([]byte, error) { return []byte("JobId=7 " + test.job + "\n"), nil }
			ctx, end := context.WithCancel(t.Context())
			defer end()
			again := make(chan os.Signal)
			go a.heed(ctx, end, test.first, again)
			time.Sleep(SameSignal / 2)
			again <- syscall.SIGTERM
			time.Sleep(2*time.Second - time.Millisecond)
			if synctest.Wait(); ctx.Err() != nil {
				t.Errorf("%s: the workload has less than KillWait", test.name)
			}
			time.Sleep(2 * time.Millisecond)
			if synctest.Wait(); (ctx.Err() != nil) != test.ends {
				t.Errorf("%s: its time is over after KillWait: %v, want %v", test.name, ctx.Err() != nil, test.ends)
			}
		})
	}
}

func TestGrace(t *testing.T) {
	for _, test := range []struct {
		name     string
		killWait time.Duration
		signal   syscall.Signal
		want     time.Duration
	}{
		{"not known", 0, syscall.SIGTERM, LocalGrace},
		{"short", 3 * time.Second, syscall.SIGTERM, 2 * time.Second},
		{"too short", time.Second, syscall.SIGTERM, 0},
		{"usual", 30 * time.Second, syscall.SIGTERM, 29 * time.Second},
		{"long", 10 * time.Minute, syscall.SIGTERM, MaxGrace},
		{"somebody waits", 30 * time.Second, syscall.SIGINT, LocalGrace},
	} {
		a := &Allocation{killWait: test.killWait}
		if got := a.grace(test.signal); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
	var none *Allocation
	if got := none.grace(syscall.SIGTERM); got != LocalGrace {
		t.Errorf("outside of Slurm: %s, want %s", got, LocalGrace)
	}
}

func TestSecondSignal(t *testing.T) {
	type signal struct {
		signal syscall.Signal
		after  time.Duration
		want   bool
	}
	for _, test := range []struct {
		name      string
		jobMayEnd bool
		further   []signal
	}{
		{"the same signal, from srun", false, []signal{{syscall.SIGTERM, SameSignal / 2, false}, {syscall.SIGTERM, 2 * SameSignal, true}}},
		{"the user's", false, []signal{{syscall.SIGTERM, 2 * SameSignal, true}}},
		{"Ctrl-C again", true, []signal{{syscall.SIGINT, 2 * SameSignal, true}}},
		{"the end of the job", true, []signal{{syscall.SIGTERM, 2 * SameSignal, false}, {syscall.SIGTERM, 5 * SameSignal / 2, false}, {syscall.SIGTERM, 4 * SameSignal, true}}},
		{"the end of the job at once", true, []signal{{syscall.SIGTERM, SameSignal / 2, false}, {syscall.SIGTERM, 2 * SameSignal, true}}},
	} {
		second := secondSignal{jobMayEnd: test.jobMayEnd}
		for i, further := range test.further {
			if got := second.is(further.signal, further.after); got != further.want {
				t.Errorf("%s: signal %d counts: %v, want %v", test.name, i+1, got, further.want)
			}
		}
	}
}

func TestTimeLimitIsNamed(t *testing.T) {
	a := &Allocation{Job: slurm.Job{ID: "7"}, end: noon, now: func() time.Time { return noon }}
	if code := exitcode.Of(a.Reason(EndedBy(syscall.SIGTERM))); code != exitcode.TimeLimit {
		t.Errorf("SIGTERM at the end of the job: exit code %d, want %d", code, exitcode.TimeLimit)
	}
	if code := exitcode.Of(a.Reason(EndedBy(syscall.SIGINT))); code != 130 {
		t.Errorf("SIGINT at the end of the job: exit code %d, want 130", code)
	}
	a.end = noon.Add(time.Hour)
	if code := exitcode.Of(a.Reason(EndedBy(syscall.SIGTERM))); code != 143 {
		t.Errorf("SIGTERM long before: exit code %d, want 143", code)
	}
	other := errors.New("other")
	if !errors.Is(a.Reason(other), other) {
		t.Error("another reason is changed")
	}
}

// A signal after the end that the run knows is not the time limit's if the limit was raised.
func TestRaisedTimeLimit(t *testing.T) {
	said := "JobId=7 JobState=COMPLETING StartTime=2026-01-01T11:00:00 EndTime=2026-01-01T12:00:00 Partition=main TimeLimit="
	for limit, want := range map[string]int{"01:00:00": exitcode.TimeLimit, "02:00:00": 143, "1-00:00:00": 143, "UNLIMITED": exitcode.TimeLimit} {
		a := newAllocation("")
		a.end = noon
		a.Ask = func(context.Context, ...string) ([]byte, error) { return []byte(said + limit), nil }
		a.GraceNow(t.Context(), syscall.SIGTERM)
		if code := exitcode.Of(a.Reason(EndedBy(syscall.SIGTERM))); code != want {
			t.Errorf("with the limit %s: exit code %d, want %d", limit, code, want)
		}
	}
}
