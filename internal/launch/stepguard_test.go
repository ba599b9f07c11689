package launch

import (
	"context"
	"fmt"
	"io"
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

	"berth.dev/berth/internal/base/exitcode"
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
	// A test that fails may never end it.
	time.AfterFunc(2*time.Minute, func() { os.Exit(1) })
	for s := range signals {
		fmt.Fprintln(file, s)
		if s == syscall.SIGTERM {
			os.Exit(0)
		}
	}
}

// srun would have its step killed at once if it got SIGINT twice. What stands for srun
// gets SIGTERM from the test a second after its SIGINT.
func TestKilledRunInterruptsItsStepOnce(t *testing.T) {
	const runs = 5
	var paths [runs]string
	var pids [runs]int
	t.Cleanup(func() {
		for _, pid := range pids {
			if pid != 0 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	input, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer input.Close()
	for i := range runs {
		paths[i] = filepath.Join(t.TempDir(), "signals")
		berth := exec.Command(os.Args[0])
		berth.Env = append(os.Environ(), stepVariable+"="+paths[i])
		berth.Stdin = input
		if err := berth.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // as below, unless the test fails
			_ = berth.Process.Kill()
			_ = berth.Wait()
		})
		pid, err := strconv.Atoi(strings.TrimSpace(awaitLine(t, paths[i], "")))
		if err != nil {
			t.Fatal(err)
		}
		pids[i] = pid
		awaitNoInput(t, berth.Process.Pid)
		if err := berth.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = berth.Wait()
	}
	for _, path := range paths {
		awaitLine(t, path, "interrupt")
	}
	time.Sleep(time.Second) // a second SIGINT would come
	for i, path := range paths {
		if err := syscall.Kill(pids[i], syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		got := awaitLine(t, path, "terminated")
		if got != fmt.Sprintf("%d\ninterrupt\nterminated\n", pids[i]) {
			t.Errorf("srun got:\n%s", got)
		}
		pids[i] = 0
	}
}

// awaitNoInput waits until a run has left its standard input to srun. It has told the
// guard before.
func awaitNoInput(t *testing.T, berth int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if input, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", berth)); input == os.DevNull {
			return
		}
	}
	t.Fatal("the run keeps its standard input")
}

// dash, which is /bin/sh on Debian, drops variables whose names are no shell
// identifiers.
func TestStepKeepsItsEnvironment(t *testing.T) {
	want := []string{"a.b=c", "BASH_FUNC_x%%=() { :; }"}
	got, code, err := runStep(t, "/usr/bin/env", want)
	if err != nil || code != 0 || got != strings.Join(want, "\n")+"\n" {
		t.Errorf("exit code %d, %v:\n%s", code, err, got)
	}
}

func TestSrunThatCannotBeStarted(t *testing.T) {
	_, _, err := runStep(t, "/nowhere/srun", nil)
	if exitcode.Of(err) != exitcode.Unavailable || !strings.HasPrefix(err.Error(), "start /nowhere/srun: ") {
		t.Errorf("%v, exit code %d", err, exitcode.Of(err))
	}
}

// runStep runs a step with another program as srun, and returns its output.
func runStep(t *testing.T, srun string, env []string) (string, int, error) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	stdout := os.Stdout
	os.Stdout = write
	step := newStep(Options{Log: slog.New(slog.DiscardHandler)}, slurm.Job{ID: "1"}, "step")
	code, stepErr := step.run(t.Context(), srun, []string{"srun"}, env)
	os.Stdout = stdout
	write.Close()
	output, err := io.ReadAll(read) // a pipe holds it
	if err != nil {
		t.Fatal(err)
	}
	return string(output), code, stepErr
}

func TestGuardWithoutAShell(t *testing.T) {
	guard := startGuard("/nowhere/sh")
	guard.watch(os.Getpid())
	guard.end()
	guard.end()
}

// Slurm is not there, so what stands for srun gets SIGINT from the step. The guard must
// not interrupt it again.
func TestInterruptedStepHasNoGuard(t *testing.T) {
	t.Setenv("PATH", "/nowhere")
	step := newStep(Options{Log: slog.New(slog.DiscardHandler)}, slurm.Job{ID: "1"}, "step")
	step.srun = exec.Command("/bin/sleep", "60")
	if err := step.srun.Start(); err != nil {
		t.Fatal(err)
	}
	step.guard = startGuard(guardShell)
	step.guard.watch(step.srun.Process.Pid)
	if err := step.end(); err == nil {
		t.Error("Slurm has ended the step")
	}
	if step.guard.shell.ProcessState == nil {
		t.Error("the guard has not ended")
	}
	step.guard.end()
	_ = step.srun.Wait()
	if got := step.srun.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != syscall.SIGINT {
		t.Errorf("it ended by %v", got)
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
