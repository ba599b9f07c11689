package batch

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil/fuzzbound"
)

const running = `JobId=12 JobName=a b
   UserId=alice(8801) GroupId=alice(8801) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-2]
   StdErr=/home/alice/my err=1
   StdIn=/dev/null
   StdOut=/home/alice/slurm-12.out
   Power=

`

func TestParseStates(t *testing.T) {
	got := parseStates(running + strings.NewReplacer("JobId=12", "JobId=13", "RUNNING", "FAILED", "ExitCode=0:0", "ExitCode=3:0").Replace(running))
	if len(got) != 2 {
		t.Fatalf("%d states: %+v", len(got), got)
	}
	want := State{ID: "12", Name: "RUNNING", Reason: "None", Nodes: "n[1-2]", Stdout: "/home/alice/slurm-12.out", Stderr: "/home/alice/my err=1"}
	if got[0] != want {
		t.Errorf("got %+v, want %+v", got[0], want)
	}
	if got[1].ID != "13" || got[1].ExitCode() != 3 || !got[1].ended() {
		t.Errorf("the second is %+v", got[1])
	}
}

func FuzzParseStates(f *testing.F) {
	f.Add(running)
	f.Fuzz(func(t *testing.T, output string) {
		fuzzbound.Watch(t)
		for _, state := range parseStates(output) {
			_ = state.text()
		}
	})
}

func TestExitCode(t *testing.T) {
	for want, states := range map[int][]State{
		0:   {{Name: "COMPLETED"}},
		1:   {{Name: "FAILED"}},
		5:   {{Name: "FAILED", Code: 5}, {Name: "CANCELLED", Code: 5}, {Name: "OUT_OF_MEMORY", Code: 5}},
		69:  {{Name: "NODE_FAIL"}, {Name: "BOOT_FAIL"}},
		124: {{Name: "TIMEOUT"}, {Name: "TIMEOUT", Signal: 15}, {Name: "DEADLINE"}},
		137: {{Name: "OUT_OF_MEMORY"}, {Name: "FAILED", Signal: 9}},
		143: {{Name: "CANCELLED"}, {Name: "CANCELLED", Signal: 15}, {Name: "PREEMPTED"}},
	} {
		for _, state := range states {
			if got := state.ExitCode(); got != want {
				t.Errorf("%+v: got %d, want %d", state, got, want)
			}
		}
	}
}

func TestSubmitted(t *testing.T) {
	for output, want := range map[string]Job{
		"Submitted batch job 12\n":               {ID: "12"},
		"12\n":                                   {ID: "12"},
		"12;east\n":                              {ID: "12", Cluster: "east"},
		"Submitted batch job 12 on cluster east": {ID: "12", Cluster: "east"},
		"welcome to the site\nSubmitted batch job 7\n": {ID: "7"},
		"": {}, "sbatch: Job 7 to start at noon": {},
	} {
		if got := submitted(output); got != want {
			t.Errorf("%q: got %+v, want %+v", output, got, want)
		}
	}
}

// answers gives one output or error after another, and the last one again.
func answers(all ...any) func(context.Context, ...string) ([]byte, error) {
	return func(context.Context, ...string) ([]byte, error) {
		answer := all[0]
		if len(all) > 1 {
			all = all[1:]
		}
		if err, ok := answer.(error); ok {
			return nil, err
		}
		return []byte(answer.(string)), nil
	}
}

func TestWatch(t *testing.T) {
	ended := strings.ReplaceAll(running, "RUNNING", "COMPLETED")
	other := strings.ReplaceAll(strings.ReplaceAll(running, "JobId=12", "JobId=13"), "ExitCode=0:0", "ExitCode=2:0")
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	started := 0
	watcher := Watcher{Ask: answers(errors.New("no answer within 3s"), running+other, ended+other, strings.ReplaceAll(other, "RUNNING", "FAILED")),
		Log: log, Started: func(State) { started++ }}
	states, err := watcher.Watch(t.Context(), Job{ID: "12"})
	if err != nil || len(states) != 2 || started != 1 {
		t.Fatalf("%+v, %v, started %d times", states, err, started)
	}
	for _, want := range []string{"asking again", "2 running", "1 completed, 1 running", "1 completed, 1 failed"} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("%q was not said:\n%s", want, said.String())
		}
	}

	lost := Watcher{Ask: answers(errors.New("slurm_load_jobs error: Invalid job id specified")), Log: log}
	if _, err := lost.Watch(t.Context(), Job{ID: "12"}); err == nil || !strings.Contains(err.Error(), "sacct -j 12") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	stopped := Watcher{Ask: answers(running), Log: log}
	if _, err := stopped.Watch(ctx, Job{ID: "12"}); err == nil || err.Error() != "enough" {
		t.Errorf("got %v", err)
	}
}

// buffer can be read while it is written to.
type buffer struct {
	mu   sync.Mutex
	data bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	ctx, cancel := context.WithCancel(t.Context())
	var got buffer
	done := make(chan error, 1)
	go func() { done <- Tail(ctx, path, &got) }()
	write := func(text string, flag int) {
		t.Helper()
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|flag, 0o600)
		if err == nil {
			_, err = file.WriteString(text)
			file.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	await := func(want string) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); got.String() != want; {
			if time.Now().After(deadline) {
				t.Fatalf("got %q, want %q", got.String(), want)
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	write("one\n", os.O_APPEND)
	await("one\n")
	write("two\n", os.O_APPEND)
	await("one\ntwo\n")
	write("new\n", os.O_TRUNC) // requeued
	await("one\ntwo\nnew\n")
	write("last", os.O_APPEND)
	cancel()
	if err := <-done; err != nil || got.String() != "one\ntwo\nnew\nlast" {
		t.Errorf("got %q, %v", got.String(), err)
	}
}
