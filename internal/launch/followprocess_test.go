package launch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/kube/containerlog"
	"berth.dev/berth/internal/kube/workload"
)

// followUntilDefect stands for the process that follows. It sends the next line, and
// another one without a mark, and panics.
func followUntilDefect() {
	var config followConfig
	files, err := linux.ReceiveFiles(&config, fdEvents, fdOutput, fdLife)
	if err != nil {
		panic(err)
	}
	mark := config.Followed.Marks["u/main"]
	mark.SentOut++
	mark.Behind = 1000
	sender := &followSender{events: files[fdEvents], output: bufio.NewWriter(files[fdOutput])}
	out := frameWriter{sender.output, containerlog.KindStdout}
	_, err = fmt.Fprintf(out, "line %d\n", mark.SentOut)
	sender.step(workload.Step{Key: "u/main", Mark: mark})
	_, noMark := fmt.Fprintf(out, "line %d\n", mark.SentOut+1)
	if err := errors.Join(err, noMark, sender.output.Flush()); err != nil {
		panic(err)
	}
	panic(fmt.Sprintf("defect %d", mark.SentOut))
}

// The process that follows may end in a panic three times. Another one continues, and
// nothing is lost or repeated. The fourth time ends the run.
func TestFourthEndOfFollowingEndsRun(t *testing.T) {
	var out, messages strings.Builder
	o := Options{Log: slog.New(slog.NewTextHandler(&messages, nil)), Stdout: &out, Stderr: io.Discard}
	ctx, giveUp := context.WithCancelCause(t.Context())
	defer giveUp(nil)
	_, err := o.followApart(ctx, nil, nil, workload.Streams{}, giveUp)
	var coded *exitcode.Error
	if !errors.As(err, &coded) || coded.Code != exitcode.Internal || !strings.Contains(err.Error(), "panic: defect 4, 4 times; what its containers write from now on is lost") {
		t.Errorf("following ends with %v", err)
	}
	if want := "line 1\nline 2\nline 3\nline 4\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
	const again = "starting it again, nothing is lost or repeated"
	if got := strings.Count(messages.String(), again); got != maxFollowers-1 {
		t.Errorf("started again %d times: %s", got, messages.String())
	}
	if want := "is lost (at least 1007 bytes): the run was ended before it was passed on"; !strings.Contains(messages.String(), want) {
		t.Errorf("no %q in %s", want, messages.String())
	}
}
