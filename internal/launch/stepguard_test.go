package launch

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth.dev/berth/internal/job/slurm"
)

// stepVariable makes this program one with its own step, to be killed. Its value is the
// file where what stands for srun writes its process ID and the signals that it gets.
const stepVariable = "BERTH_TEST_STEP"

func runStepToBeKilled() {
	for range 16 { // each thread may inherit srun
		go func() {
			runtime.LockOSThread()
			select {}
		}()
	}
	step := newStep(Options{Log: slog.New(slog.DiscardHandler)}, slurm.Job{ID: "1"}, "step")
	_, _ = step.run(context.Background(), os.Args[0], []string{"srun", "stands for srun"}, os.Environ())
	os.Exit(1)
}

func recordSignals(path string) {
	signals := make(chan os.Signal, 100)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		os.Exit(1)
	}
	fmt.Fprintln(file, os.Getpid())
	for s := range signals {
		fmt.Fprintln(file, s)
		if s == syscall.SIGTERM {
			os.Exit(0)
		}
	}
}

// srun would have its step killed at once if it got SIGINT twice.
func TestKilledRunInterruptsItsStepOnce(t *testing.T) {
	for range 5 {
		path := filepath.Join(t.TempDir(), "signals")
		berth := exec.Command(os.Args[0])
		berth.Env = append(os.Environ(), stepVariable+"="+path)
		if err := berth.Start(); err != nil {
			t.Fatal(err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(awaitLine(t, path, "")))
		if err != nil {
			t.Fatal(err)
		}
		if err := berth.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = berth.Wait()
		awaitLine(t, path, "interrupt")
		if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if got := awaitLine(t, path, "terminated"); got != fmt.Sprintf("%d\ninterrupt\nterminated\n", pid) {
			t.Errorf("srun got:\n%s", got)
		}
	}
}

// awaitLine returns the text of a file when a line has these words.
func awaitLine(t *testing.T, path, words string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		data, _ := os.ReadFile(path)
		if text := string(data); strings.HasSuffix(text, "\n") && strings.Contains(text, words) {
			return text
		}
	}
	t.Fatalf("%s has no %q", path, words)
	return ""
}
