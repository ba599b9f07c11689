package launch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
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
