package pilots

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/elastic/wishes"
	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/job/slurm"
)

// slurmStub stands for Slurm. It records the commands that change jobs.
type slurmStub struct {
	// submitted holds the jobs with UIDs, and others the numbers of further jobs of the user.
	submitted []queue.State
	others    []string
	// failures is the number of questions that fail before the first answer.
	failures int
	asked    []string
}

func (s *slurmStub) Submit(context.Context, string, string, func() (queue.Job, error)) (string, error) {
	return "", errors.New("no test submits")
}
func (s *slurmStub) Find(context.Context, string) (string, bool, error) { return "", false, nil }
func (s *slurmStub) Release(_ context.Context, id string) error         { return s.change("release", id) }
func (s *slurmStub) Cancel(_ context.Context, id string) error          { return s.change("cancel", id) }
func (s *slurmStub) States(context.Context, map[string]string) (map[string]queue.State, error) {
	return nil, nil
}

func (s *slurmStub) change(words ...string) error {
	s.asked = append(s.asked, strings.Join(words, " "))
	return nil
}

func (s *slurmStub) all(context.Context) ([]queue.State, error) { return s.submitted, nil }

func (s *slurmStub) ask(_ context.Context, command ...string) ([]byte, error) {
	if command[0] != "squeue" {
		return nil, s.change(command...)
	}
	if s.failures--; s.failures >= 0 {
		return nil, errors.New("Unable to contact slurm controller")
	}
	ids := slices.Clone(s.others)
	for _, job := range s.submitted {
		ids = append(ids, job.ID)
	}
	return []byte(strings.Join(ids, "\n") + "\n"), nil
}

// newTestLoop returns a loop of the cluster of job 7 that is not running.
func newTestLoop(s *slurmStub) *Loop {
	return &Loop{
		Options: Options{
			Job: "7", Seats: 9, Slurm: s, Submitted: s.all, Ask: s.ask, Forget: func(string) error { return nil }, Log: slog.New(slog.DiscardHandler),
		},
		core: fake.NewClientset().CoreV1(), wake: make(chan struct{}, 1), owners: &owners{byPod: map[types.UID][]wishes.Owner{}},
		view:   &view{podStore: cache.NewStore(cache.MetaNamespaceKeyFunc), nodeStore: cache.NewStore(cache.MetaNamespaceKeyFunc)},
		pilots: map[string]*pilot{}, failures: map[string]*failure{}, tested: map[string]time.Time{}, fewer: map[string]limit{},
	}
}

// A loop that begins deals with the jobs of an earlier one.
func TestPilotsWithoutRecord(t *testing.T) {
	s := &slurmStub{others: []string{"7", "8"}, failures: 1, submitted: []queue.State{
		{UID: "pilot-7-known", ID: "20", State: slurm.Pending},
		{UID: "pilot-7-waits", ID: "21", State: slurm.Pending},
		{UID: "pilot-7-runs", ID: "22", State: slurm.Running, Nodes: "n[1-3]"},
		{UID: "pilot-7-over", ID: "23", State: "COMPLETED"},
		{UID: "pilot-8-waits", ID: "24", State: slurm.Pending},
		{UID: "pilot-6-waits", ID: "25", State: slurm.Pending},
		{UID: "pilot-6-runs", ID: "26", State: slurm.Running},
		{UID: "0b9d6c0e-object", ID: "27", State: slurm.Pending},
	}}
	l := newTestLoop(s)
	l.pilots["pilot-7-known"] = &pilot{record: record{UID: "pilot-7-known", status: status{Job: "20"}}}
	if err := l.settleStrangersOnce(t.Context()); err == nil || len(s.asked) > 0 {
		t.Errorf("without an answer: %v, %q", err, s.asked)
	}
	if err := l.settleStrangersOnce(t.Context()); err != nil || fmt.Sprint(s.asked) != "[cancel 21 cancel 25]" {
		t.Errorf("%v, %q", err, s.asked)
	}
	adopted := l.pilots["pilot-7-runs"]
	if len(l.pilots) != 2 || adopted == nil || adopted.Job != "22" || adopted.Nodes != 3 || !adopted.Joined || !adopted.Released || !adopted.hasWork() {
		t.Fatalf("%d pilots; adopted %+v", len(l.pilots), adopted)
	}
	if err := l.steps(t.Context(), adopted); err != nil || adopted.hasWork() || len(s.asked) != 2 {
		t.Errorf("%v, %+v, %q", err, adopted, s.asked)
	}
	s.others = []string{"8"}
	delete(l.pilots, "pilot-7-runs")
	if err := l.settleStrangersOnce(t.Context()); err == nil || len(l.pilots) != 1 {
		t.Error("a list of jobs without the cluster's own is believed")
	}
}

// A pilot that was submitted after the state was saved last keeps its wishes: a pod that has brought
// it brings no second one.
func TestAdoptedPilotKeepsItsRequest(t *testing.T) {
	request := plan.Request{Options: []string{"--partition=long"}, Only: "pod u", Nodes: 2, Size: plan.Size{MilliCPU: 2000, Memory: 1 << 30}}
	for _, c := range []struct {
		name   string
		change func(script string) string
		want   plan.Request
		joined bool
	}{
		{"its script", func(script string) string { return script }, request, false},
		{"another script", func(string) string { return "#!/bin/sh\nexec berth join 7\n" }, plan.Request{Nodes: 3}, true},
		{"a refused option", func(script string) string { return strings.Replace(script, "--partition=long", "--wrap=id", 1) }, plan.Request{Nodes: 3}, true},
		{"no request", func(script string) string { return strings.Replace(script, requestMark+"{", requestMark, 1) }, plan.Request{Nodes: 3}, true},
	} {
		s := &slurmStub{others: []string{"7"}, submitted: []queue.State{{UID: "pilot-7-runs", ID: "22", State: slurm.Running, Nodes: "n[1-3]"}}}
		l := newTestLoop(s)
		l.State = t.TempDir()
		script := l.job("7", record{UID: "pilot-7-runs", Request: request}).Script
		folder := queue.Folder(l.State, "pilot-7-runs")
		if err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, queue.ScriptName+"-1"), []byte(c.change(string(script))), 0o700)); err != nil {
			t.Fatal(err)
		}
		if err := l.settleStrangersOnce(t.Context()); err != nil || !l.settled {
			t.Fatal(err)
		}
		if p := l.pilots["pilot-7-runs"]; p == nil || !reflect.DeepEqual(p.Request, c.want) || p.Joined != c.joined {
			t.Errorf("%s: %+v, want %+v", c.name, p, c.want)
		}
	}
}

// Only pilots are cancelled, whatever the names of jobs are.
func TestPendingPilotsAreCancelled(t *testing.T) {
	s := &slurmStub{submitted: []queue.State{
		{UID: "pilot-7-a", ID: "21", Name: "mine", State: slurm.Pending},
		{UID: "pilot-7-b", ID: "22", State: slurm.Running},
		{UID: "pilot-77-c", ID: "23", Name: "berth-join-7", State: slurm.Pending},
		{UID: "pilot-7-d", ID: "24", State: slurm.Pending},
	}}
	if err := CancelPending(t.Context(), s.ask, s.all, "7"); err != nil || fmt.Sprint(s.asked) != "[scancel --state=PENDING 21 24]" {
		t.Errorf("%v, %q", err, s.asked)
	}
	for _, c := range []struct {
		name  string
		pilot pilot
		want  string
	}{
		{"waits", pilot{record: record{status: status{Job: "21", State: slurm.Pending}}}, "[scancel --state=PENDING 21]"},
		{"runs", pilot{record: record{status: status{Job: "22", State: slurm.Running}}}, "[]"},
		{"may have been submitted", pilot{exists: true}, "[scancel --state=PENDING 21 24]"},
		{"was planned", pilot{record: record{Request: plan.Request{Nodes: 1}}}, "[]"},
	} {
		s.asked = nil
		l := newTestLoop(s)
		l.pilots["pilot-7-x"] = &c.pilot
		if err := l.cancelPending(t.Context()); err != nil || fmt.Sprint(s.asked) != c.want {
			t.Errorf("a pilot that %s: %v, %q", c.name, err, s.asked)
		}
	}
}

// The next head needs the pilots that wait, if the cluster's job starts again.
func TestPendingPilotsStayForNextHead(t *testing.T) {
	for cause, want := range map[error]string{
		ErrReturns: "[]", errors.New("the cluster ends"): "[scancel --state=PENDING 21]",
	} {
		s := &slurmStub{}
		l := newTestLoop(s)
		l.events, l.Interval = newEvents(l.core, l.Log), time.Hour
		waits := status{Job: "21", Released: true, State: slurm.Pending}
		l.pilots["pilot-7-x"] = &pilot{record: record{status: waits}, saved: waits, exists: true}
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(cause)
		if err := l.Run(ctx); err != nil || fmt.Sprint(s.asked) != want {
			t.Errorf("%v: %v, %q; want %s", cause, err, s.asked, want)
		}
	}
}

// A user who cancels pilots that wait does not delay others by minutes.
func TestPilotsThatEndTogetherFailOnce(t *testing.T) {
	l := newTestLoop(&slurmStub{})
	for i := range 6 {
		p := &pilot{record: record{UID: fmt.Sprintf("pilot-7-%d", i), status: status{Job: "21", State: slurm.Pending}}}
		l.pilots[p.UID] = p
		if err := l.end(t.Context(), p, queue.State{ID: "21", State: "CANCELLED"}); err != nil {
			t.Fatal(err)
		}
	}
	f := l.failures[failureKey(plan.Request{})]
	if len(l.pilots) != 0 || f == nil || f.count != 1 || f.reason != "job 21 ended before it started: cancelled" {
		t.Errorf("%d pilots, %+v", len(l.pilots), f)
	}
	f.until = time.Time{}
	p := &pilot{record: record{UID: "pilot-7-x", status: status{Job: "22", State: slurm.Running}}}
	if err := l.end(t.Context(), p, queue.State{ID: "22", State: "FAILED", ExitCode: 1, Nodes: "n1"}); err != nil || f.count != 2 ||
		f.reason != "job 22 ended before its node was ready: failed (exit code 1)" {
		t.Errorf("%v, %+v", err, f)
	}
}
