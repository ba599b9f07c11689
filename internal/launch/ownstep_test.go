package launch

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/job/slurm"
)

// A signal ends the run whose output nobody reads. Slurm is not there, so what stands for
// srun gets SIGINT.
func TestUnreadOutputOfAStepHoldsNoSignalUp(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", "/nowhere")
	stdout := os.Stdout
	os.Stdout = write
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		step := newStep(Options{Log: slog.New(slog.DiscardHandler)}, slurm.Job{ID: "1"}, "step")
		_, err := step.run(ctx, "/usr/bin/head", []string{"srun", "--bytes=1000000", "/dev/zero"}, nil)
		ended <- err
	}()
	for waiting := 0; waiting < 64<<10; { // as many bytes as a pipe holds
		if waiting, err = unix.IoctlGetInt(int(read.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	cancel(errors.New("a signal"))
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Error("the run waits for its reader")
	}
	os.Stdout = stdout
	read.Close()
	write.Close()
}

// What the workload writes while it ends is passed on, as the rest of its output.
func TestOutputOfAnEndingStepIsPassedOn(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	t.Setenv("PATH", "/nowhere")
	stdout := os.Stdout
	os.Stdout = write
	defer func() { os.Stdout = stdout }()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() {
		defer write.Close()
		step := newStep(Options{Log: slog.New(slog.DiscardHandler)}, slurm.Job{ID: "1"}, "step")
		_, err := step.run(ctx, "/bin/sh", []string{"srun", "-c", `trap 'echo asked to end; exit' INT; echo started; while :; do /bin/sleep 0.05; done`}, nil)
		ended <- err
	}()
	lines := bufio.NewReader(read)
	for _, want := range []string{"started\n", "asked to end\n", ""} {
		if got, _ := lines.ReadString('\n'); got != want { // an error is the end of the output
			t.Errorf("%q, want %q", got, want)
		}
		cancel(errors.New("a signal"))
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// srun can end though nobody reads what it writes while the step ends.
func TestStalledReaderGetsNoMoreOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		ending := make(chan struct{})
		o := &stepOutput{output: output{write, func(error) {}}, ending: ending}
		close(ending)
		go func() {
			time.Sleep(stalledWait / 2)
			_, _ = read.Read(make([]byte, 4))
		}()
		for i, want := range []bool{false, true, true} { // the first line has a slow reader
			if n, err := o.Write([]byte("line")); n != 4 || err != nil || o.unread != want {
				t.Errorf("line %d: %d bytes, %v, unread %v; want %v", i, n, err, o.unread, want)
			}
		}
		read.Close()
	})
}
