package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/internal/kube/containerlog"
	"berth.dev/berth/internal/kube/workload"
)

// A process that dies leaves an incomplete batch or frame. Another process sends
// everything after the last mark again.
func TestOutputIsForwardedUpToLastMark(t *testing.T) {
	var sent bytes.Buffer
	for _, text := range []string{"first\n", "second\n"} {
		if err := (containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte(text)}).Write(&sent); err != nil {
			t.Fatal(err)
		}
		mark := workload.Step{Key: "u/main", Mark: workload.Mark{SentOut: int64(len(text))}}
		if err := containerlog.WriteJSON(&sent, containerlog.KindPosition, mark); err != nil {
			t.Fatal(err)
		}
	}
	whole := sent.Bytes()
	for cut := range whole {
		var out strings.Builder
		f := newFollowProcess(workload.Streams{Out: &out, Progress: &workload.Progress{}})
		if err := f.readOutput(bytes.NewReader(whole[:cut])); err != nil {
			t.Fatal(err)
		}
		mark := f.streams.Progress.Followed().Marks["u/main"]
		want := map[int64]string{0: "", 6: "first\n"}[mark.SentOut]
		if out.String() != want {
			t.Errorf("after %d bytes: passed on %q, marked %d", cut, &out, mark.SentOut)
		}
	}
}

// A reader that stopped, as in "| less", gets no more output. The number of bytes
// that it does not get is known when the run ends.
func TestUnforwardedOutputIsCounted(t *testing.T) {
	var sent bytes.Buffer
	for i, text := range []string{"passed\n", "stuck\n"} {
		mark := workload.Step{Key: "u/main", Mark: workload.Mark{Behind: int64(1000 * i), Out: []byte("part")}}
		err := containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte(text)}.Write(&sent)
		if err := errors.Join(err, containerlog.WriteJSON(&sent, containerlog.KindPosition, mark)); err != nil {
			t.Fatal(err)
		}
	}
	read, out := io.Pipe()
	f := newFollowProcess(workload.Streams{Out: out, Progress: &workload.Progress{}})
	done := make(chan error)
	go func() { done <- f.readOutput(&sent) }()
	if _, err := io.ReadFull(read, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(read, make([]byte, 1)); err != nil { // the second text has begun
		t.Fatal(err)
	}
	if got, want := f.unread(), int64(len("stuck\n")+1000+len("part")); got != want {
		t.Errorf("%d bytes are unread, want %d", got, want)
	}
	limit := make(chan struct{})
	close(limit)
	f.awaitOutput(limit)
	read.Close()
	if err := <-done; err == nil || !f.refused {
		t.Errorf("a closed pipe: %v", err)
	}
}

// The supervisor keeps what the next process, or another head, has to know.
func TestSupervisorKeepsWhatWasFollowed(t *testing.T) {
	var events, output bytes.Buffer
	sender := followSender{events: &events, output: bufio.NewWriter(&output)}
	role := workload.NewProgress(workload.Followed{}, sender.step)
	role.Apply(workload.Step{Key: "u/main", Begun: true})
	role.Apply(workload.Step{Key: "u/other", Begun: true})
	role.Apply(workload.Step{
		Key: "u/main", Mark: workload.Mark{SentOut: 5, Behind: 9},
		Lost: []workload.LostOutput{{Loss: containerlog.Loss{Bytes: 7}, Message: "output is lost"}},
	})
	role.Apply(workload.Step{Key: "u/main", Complete: true})
	role.Apply(workload.Step{Key: "j1", Ended: &workload.Result{Code: 3, Reason: "failed"}})

	var said string
	f := newFollowProcess(workload.Streams{
		Progress: &workload.Progress{}, Lose: func(text string, _ containerlog.Loss) { said = text },
	})
	if err := errors.Join(f.readEvents(&events), f.readOutput(&output)); err != nil {
		t.Fatal(err)
	}
	got, want := f.streams.Progress.Followed(), role.Followed()
	if !reflect.DeepEqual(got, want) || got.Losses.Sum.Bytes != 7 || len(got.Marks) != 1 || len(got.Complete) != 1 || len(got.Ended) != 1 {
		t.Errorf("the supervisor has %+v, want %+v", got, want)
	}
	if said != "output is lost" || f.unread() != 0 {
		t.Errorf("said %q, %d bytes are unread", said, f.unread())
	}
}

// A pod that can never start ends the run while other containers write.
func TestUnreadOutputBesidePodThatNeverStartsIsCounted(t *testing.T) {
	var lost containerlog.Loss
	f := newFollowProcess(workload.Streams{Progress: &workload.Progress{}, Lose: func(_ string, loss containerlog.Loss) { lost = loss }})
	f.waiting["u/main"] = waitingOutput{onNode: 1000}
	f.held, f.last = 7, followEvent{Result: &workload.Result{}, Stuck: &workload.NeverStarts{}}
	if _, err := f.result(); !errors.Is(err, f.last.Stuck) || lost.Bytes != 1007 {
		t.Errorf("lost %v, %v", lost, err)
	}
}

// A container prints lines, and its node announces what it has not sent yet.
func TestLastOutputIsAwaited(t *testing.T) {
	always := func(bytes int64) func(int) int64 { return func(int) int64 { return bytes } }
	until := func(line int) func(int) int64 { return func(n int) int64 { return int64(max(0, line-n)) } }
	for name, test := range map[string]struct {
		before int64           // bytes on the node when the run is to end
		behind func(int) int64 // and after each line
		lines  int
		every  time.Duration
		flows  bool
		want   time.Duration // of the bubble's clock, in seconds
	}{
		"there is none":                         {flows: true},
		"it takes long":                         {before: 20, behind: until(20), lines: 20, every: time.Second, flows: true, want: 20 * time.Second},
		"its container goes on":                 {behind: always(0), lines: 1000, every: quietOutput / 2, flows: true, want: keptUp},
		"its container goes on after the first": {before: 5, behind: until(5), lines: 1000, every: quietOutput / 2, flows: true, want: keptUp},
		"its node kept up at first":             {behind: func(n int) int64 { return int64(400-n) * int64(min(1, n/40)) }, lines: 400, every: quietOutput / 2, flows: true, want: 20 * time.Second},
		"it stops coming":                       {before: 9, behind: until(9), lines: 3, every: time.Second, want: 3*time.Second + stoppedOutput},
		"it comes slowly":                       {before: 9, behind: always(1), lines: 1000, every: time.Second, want: outputBesideStuck},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				read, write := io.Pipe()
				f := newFollowProcess(workload.Streams{Out: io.Discard, Progress: &workload.Progress{}})
				f.waiting["u/main"] = waitingOutput{onNode: test.before, ofLine: 3}
				var streams sync.WaitGroup
				streams.Go(func() {
					for n := range test.lines {
						time.Sleep(test.every)
						mark := workload.Step{Key: "u/main", Mark: workload.Mark{Behind: test.behind(n + 1), Out: []byte("part")}}
						err := containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte("line\n")}.Write(write)
						if errors.Join(err, containerlog.WriteJSON(write, containerlog.KindPosition, mark)) != nil {
							return
						}
					}
				})
				streams.Go(func() { _ = f.readOutput(read) })
				limit, stop := context.WithTimeout(t.Context(), outputBesideStuck)
				defer stop()
				began := time.Now()
				flows := f.awaitOutput(limit.Done())
				if after := time.Since(began).Round(time.Second); flows != test.flows || after != test.want {
					t.Errorf("%v after %s, want %v after %s", flows, after, test.flows, test.want)
				}
				read.Close()
				streams.Wait()
			})
		})
	}
}

func TestPanicReasonIsFound(t *testing.T) {
	for said, want := range map[string]string{
		"": "",
		"W1124 something\npanic: runtime error: invalid memory address\n\ngoroutine 1": ": panic: runtime error: invalid memory address",
		"no such file\nmore\n": ": no such file",
	} {
		var b headBuffer
		if _, err := b.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		if got := b.panicked(); got != want {
			t.Errorf("of %q: %q, want %q", said, got, want)
		}
	}
}
