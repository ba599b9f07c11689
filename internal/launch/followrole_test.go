package launch

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

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
		mark := followMark{"u/main", workload.Mark{SentOut: int64(len(text))}}
		if err := containerlog.WriteJSON(&sent, containerlog.KindPosition, mark); err != nil {
			t.Fatal(err)
		}
	}
	whole := sent.Bytes()
	for cut := range whole {
		var out strings.Builder
		f := followProcess{streams: workload.Streams{Out: &out, Progress: &workload.Progress{}}, behind: map[string]int64{}}
		if err := f.readOutput(bytes.NewReader(whole[:cut])); err != nil {
			t.Fatal(err)
		}
		mark := f.streams.Progress.Marks()["u/main"]
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
		mark := followMark{"u/main", workload.Mark{Behind: int64(1000 * i), Out: []byte("part")}}
		err := containerlog.Frame{Kind: containerlog.KindStdout, Data: []byte(text)}.Write(&sent)
		if err := errors.Join(err, containerlog.WriteJSON(&sent, containerlog.KindPosition, mark)); err != nil {
			t.Fatal(err)
		}
	}
	read, out := io.Pipe()
	f := followProcess{streams: workload.Streams{Out: out, Progress: &workload.Progress{}}, behind: map[string]int64{}}
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
