package crash

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// TestMain also runs the test program as the reporter, and as a process that panics in a
// goroutine.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == Arg {
		os.Exit(Main())
	}
	how := os.Getenv("CRASH")
	if how == "" {
		os.Exit(m.Run())
	}
	KeepStderr()
	reporter, err := Start("/proc/self/exe", BeforeWorkload())
	if err != nil {
		panic(err)
	}
	switch how {
	case "keep":
		reporter.Note(Note{Process: "the test", Lost: ", and so on", Keep: os.Getenv("KEEP")})
	case "never":
		if err := errors.Join(reporter.Close(), reporter.Close()); err != nil {
			panic(err)
		}
		_, _ = os.NewFile(2, "stderr").WriteString("descriptor 2 is back\n")
		os.Exit(3)
	case "stopped":
		if err := unix.Kill(reporter.PID(), unix.SIGSTOP); err != nil {
			panic(err)
		}
		for linux.ProcessState(reporter.PID()) != linux.ProcessStopped {
			time.Sleep(time.Millisecond)
		}
		for deadline := time.Now().Add(time.Minute); linux.ProcessState(reporter.PID()) == linux.ProcessStopped; {
			if time.Now().After(deadline) {
				os.Exit(4)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	go panic("out of order")
	select {}
}

// crashed runs this program with a panic. It returns the standard error, when all
// processes have closed it, and the error of the process.
func crashed(t *testing.T, how, keep string) (stderr, ended string) {
	t.Helper()
	process := exec.Command("/proc/self/exe")
	var said bytes.Buffer
	process.Env, process.Stderr = []string{"CRASH=" + how, "KEEP=" + keep}, &said
	err := process.Run()
	if err == nil {
		t.Fatal("the process has ended well")
	}
	return said.String(), err.Error()
}

func TestPanicIsReportedInOneSentence(t *testing.T) {
	const reason = " has crashed (panic: out of order)"
	stderr, ended := crashed(t, "early", "")
	if !strings.HasPrefix(ended, "signal: aborted") {
		t.Errorf("the process ended with %s", ended)
	}
	if !strings.HasPrefix(stderr, "berth: berth"+reason+" before it started the workload; keep what follows, and report it\n") ||
		!strings.Contains(stderr, "crash.TestMain") {
		t.Errorf("got %q", stderr)
	}
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "berth: ") {
			t.Errorf("a line %q", line)
		}
	}
	keep := filepath.Join(t.TempDir(), "panic.log")
	stderr, _ = crashed(t, "keep", keep)
	if want := "berth: the test" + reason + ", and so on; report it with " + keep + "\n"; stderr != want {
		t.Errorf("got %q, want %q", stderr, want)
	}
	if kept, err := os.ReadFile(keep); err != nil || !strings.Contains(string(kept), "crash.TestMain") {
		t.Errorf("kept %q, %v", kept, err)
	}
}

// TestStoppedReporterIsContinued: otherwise a panic would wait for the reporter forever, and the
// reporter would stay on the host after the process was killed.
func TestStoppedReporterIsContinued(t *testing.T) {
	if stderr, ended := crashed(t, "stopped", ""); !strings.HasPrefix(ended, "signal: aborted") || !strings.HasPrefix(stderr, "berth: berth has crashed") {
		t.Errorf("got %q, %s", stderr, ended)
	}
}

func TestNothingIsReportedWithoutAPanic(t *testing.T) {
	if stderr, ended := crashed(t, "never", ""); stderr != "descriptor 2 is back\n" || ended != "exit status 3" {
		t.Errorf("got %q, %s", stderr, ended)
	}
}

// After the end of a process, Slurm may kill all other processes of its step.
func TestPanicIsReportedBeforeTheProcessEnds(t *testing.T) {
	output, runtime := io.Pipe()
	stderr, said := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- report(output, said, func() Note { return Note{Process: "the test", Lost: ", and so on"} })
		said.Close()
	}()
	go func() {
		_, _ = io.WriteString(runtime, "panic: out of order\n\ngoroutine 1 [running]:\nmain.main()\n\ngoroutine 2 [")
	}()
	const want = "berth: the test has crashed (panic: out of order), and so on; keep what follows, and report it\n" +
		"berth:   goroutine 1 [running]:\nberth:   main.main()\n"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(stderr, got); err != nil || string(got) != want {
		t.Errorf("got %q, %v", got, err)
	}
	runtime.Close()
	if rest, err := io.ReadAll(stderr); len(rest) > 0 || err != nil {
		t.Errorf("then %q, %v", rest, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// With "2>&1 | less", standard error may not be read for a long time. The file then has
// all stacks, and the crashed process ends. The reader gets the sentence later.
func TestPanicDoesNotWaitForReaderOfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keep := filepath.Join(t.TempDir(), "panic.log")
		output, runtime := io.Pipe()
		reader, stderr := io.Pipe()
		reported := make(chan error, 1)
		go func() {
			reported <- report(output, stderr, func() Note { return Note{Process: "the test", Lost: ", and so on", Keep: keep} })
			stderr.Close()
		}()
		const first, rest = "panic: out of order\n\ngoroutine 1 [running]:\nmain.main()\n\n", "goroutine 2 [running]:\nmain.other()\n"
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.WriteString(runtime, first)
			_, _ = io.WriteString(runtime, rest)
			runtime.Close()
		}()
		synctest.Wait()
		if kept, err := os.ReadFile(keep); err != nil || string(kept) != first {
			t.Errorf("before the reader, %q is kept, %v", kept, err)
		}
		select {
		case <-ended:
		case <-time.After(time.Hour):
			t.Error("the process waits for the reader")
		}
		text, err := io.ReadAll(reader)
		if want := "berth: the test has crashed (panic: out of order), and so on; report it with " + keep + "\n"; err != nil || string(text) != want {
			t.Errorf("%q, %v", text, err)
		}
		if err := <-reported; err != nil {
			t.Error(err)
		}
		if kept, err := os.ReadFile(keep); err != nil || string(kept) != first+rest {
			t.Errorf("%q is kept, %v", kept, err)
		}
	})
}

// A closed standard error and a full disk do not delay the end of the process either.
func TestPanicWithoutReaderOrDisk(t *testing.T) {
	output, runtime := io.Pipe()
	reader, stderr := io.Pipe()
	reader.Close()
	go func() {
		_, _ = io.WriteString(runtime, "panic: out of order\n\ngoroutine 1 [running]:\nmain.main()\n\n")
		_, _ = io.WriteString(runtime, "goroutine 2 [running]:\n")
		runtime.Close()
	}()
	if err := report(output, stderr, func() Note { return Note{Process: "the test", Keep: "/dev/full"} }); err != nil {
		t.Error(err)
	}
}
