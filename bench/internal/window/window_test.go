package window

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCut(t *testing.T) {
	before := Mark + "before 2 100.00 cpu  10 0 10 1000 100 0 0 50 0 0\n"
	after := "\n" + Mark + "after 2 102.00 cpu  99 0 99 1100 110 0 0 60 0 0\n"
	own, w, err := Cut(before + "{}\nend" + after + "more\n")
	// Of two processors' four seconds, 1.2 were idle or stolen.
	if err != nil || own != "{}\nendmore\n" || w == nil || w.Seconds != 2 || w.Processors != 2 || w.Busy < 2.799 || w.Busy > 2.801 {
		t.Errorf("%q, %+v, %v", own, w, err)
	}
	// If the time of waits for disks runs backwards, the busy time stays between zero and
	// the maximum.
	back := "\n" + Mark + "after 2 102.00 cpu  99 0 99 1000 50 0 0 50 0 0\n"
	if _, w, err := Cut(before + back); err != nil || w == nil || w.Busy != 4 {
		t.Errorf("backwards: %+v, %v", w, err)
	}
	if _, w, err := Cut(before + strings.Replace(after, " 1100 ", " 9000 ", 1)); err != nil || w == nil || w.Busy != 0 {
		t.Errorf("more idle than there was time: %+v, %v", w, err)
	}
	if own, w, err := Cut("it\n"); own != "it\n" || w != nil || err != nil {
		t.Errorf("without counters: %q, %+v, %v", own, w, err)
	}
	for name, text := range map[string]string{
		"no end": before + "{}", "no numbers": before + "{}\n" + Mark + "after 2 x cpu 1 2 3 4 5 6 7 8 9 10\n",
		"too few": Mark + "before 2 1\n" + "\n" + Mark + "after 2\n",
	} {
		if _, w, err := Cut(text); err == nil || w != nil {
			t.Errorf("%s: %+v, %v", name, w, err)
		}
	}
}

// spins uses some processor time.
const spins = `echo it; n=0; while [ $n -lt 150000 ]; do n=$((n + 1)); done; exit 3`

// TestShell: the command of a container returns the program's window and exit code.
func TestShell(t *testing.T) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		if os.Getenv("BERTH_CI") != "" {
			t.Fatal("there is no busybox, which CI has to have")
		}
		t.Skip("there is no busybox")
	}
	dir := t.TempDir()
	if err := os.Symlink(busybox, filepath.Join(dir, "sh")); err != nil {
		t.Fatal(err)
	}
	argv := Shell([]string{"sh", "-c", spins})
	command := exec.Command(filepath.Join(dir, argv[0]), argv[1:]...)
	out, _ := command.Output()
	check(t, string(out), command.ProcessState.ExitCode())
}

func TestRun(t *testing.T) {
	if os.Getenv("BERTH_BENCH_WINDOW") != "" {
		code, err := Run([]string{"sh", "-c", spins})
		if err != nil {
			t.Fatal(err)
		}
		os.Exit(code)
	}
	command := exec.Command(os.Args[0], "-test.run", "^TestRun$")
	command.Env = append(os.Environ(), "BERTH_BENCH_WINDOW=yes")
	out, _ := command.Output()
	check(t, string(out), command.ProcessState.ExitCode())
	for _, args := range [][]string{nil, {"/no/such/program"}} {
		if _, err := Run(args); err == nil {
			t.Errorf("%q runs", args)
		}
	}
}

func check(t *testing.T, out string, code int) {
	t.Helper()
	own, w, err := Cut(out)
	if err != nil || w == nil || code != 3 || strings.TrimSpace(own) != "it" {
		t.Fatalf("exit code %d, %q, %+v, %v", code, out, w, err)
	}
	if w.Seconds <= 0 || w.Processors < 1 || w.Busy > w.Seconds*float64(w.Processors) {
		t.Errorf("%+v", w)
	}
	// The time since the start has hundredths, which count for each processor.
	if least := 0.02 * float64(w.Processors); w.Busy <= 0 && w.Seconds > least {
		t.Errorf("a program that spins took nothing of %+v", w)
	}
}
