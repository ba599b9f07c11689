package sandbox

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
)

// TestMain lets the test program panic as a supervisor would, in a goroutine.
func TestMain(m *testing.M) {
	if os.Getenv("CRASH") != "" {
		debug.SetTraceback("crash")
		go panic("out of order")
		select {}
	}
	os.Exit(m.Run())
}

func TestAPanicIsReportedInOneSentence(t *testing.T) {
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	report := func(keep string) string {
		var stderr strings.Builder
		if err := reportCrash(said, &stderr, keep, "the supervisor"); err != nil {
			t.Fatal(err)
		}
		return stderr.String()
	}
	if got := report(""); got != "" {
		t.Errorf("a supervisor without a panic: %q", got)
	}
	process := exec.Command("/proc/self/exe")
	process.Env, process.Stderr = []string{"CRASH=yes"}, said
	if err := process.Run(); err == nil || !strings.HasPrefix(err.Error(), "signal: aborted") {
		t.Fatalf("the process ended with %v", err)
	}
	const sentence = "berth: the supervisor has crashed (panic: out of order), and the cluster has ended with it: " +
		"the workload's result and its output that is not printed above are lost; "
	keep := filepath.Join(t.TempDir(), "panic.log")
	if got, want := report(keep), sentence+"report it with "+keep+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if kept, err := os.ReadFile(keep); err != nil || !strings.Contains(string(kept), "sandbox.TestMain") {
		t.Errorf("kept %q, %v", kept, err)
	}
	got := report("")
	if !strings.HasPrefix(got, sentence+"keep what follows, and report it\n") || !strings.Contains(got, "sandbox.TestMain") {
		t.Errorf("got %q", got)
	}
	for line := range strings.Lines(got) {
		if !strings.HasPrefix(line, "berth: ") {
			t.Errorf("a line %q", line)
		}
	}
}
