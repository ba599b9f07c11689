package launch

import (
	"bytes"
	"strings"
	"testing"

	"berth.dev/berth/internal/kube/containerlog"
	"berth.dev/berth/internal/kube/workload"
)

// A process that dies leaves half a batch, or half a frame. Another one sends
// what follows the last mark again.
func TestOutputIsPassedOnUpToTheLastMark(t *testing.T) {
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
		f := followProcess{streams: workload.Streams{Out: &out, Progress: &workload.Progress{}}}
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

func TestTheReasonOfAPanicIsFound(t *testing.T) {
	for said, want := range map[string]string{
		"": "",
		"W1124 something\npanic: runtime error: invalid memory address\n\ngoroutine 1": ": panic: runtime error: invalid memory address",
		"no such file\nmore\n": ": no such file",
	} {
		var b tailBuffer
		if _, err := b.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		if got := b.panicked(); got != want {
			t.Errorf("of %q: %q, want %q", said, got, want)
		}
	}
}
