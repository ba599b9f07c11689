package stories

import (
	"errors"
	"os/exec"
	"strconv"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// exits runs a command and checks its exit code: exits CODE COMMAND...
// Standard output and error are kept as after exec.
func exits(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND...")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("exits: %v", err)
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("exits: %v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// untilDeadline bounds the wait of until.
const untilDeadline = 30 * time.Second

// until repeats a command until it succeeds: until COMMAND...
func until(ts *testscript.TestScript, negated bool, args []string) {
	if negated || len(args) == 0 {
		ts.Fatalf("usage: until COMMAND...")
	}
	deadline := time.Now().Add(untilDeadline)
	for {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("%v: still failing after %s: %v", args, untilDeadline, err)
		}
		<-time.After(100 * time.Millisecond)
	}
}
