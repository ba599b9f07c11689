package sandbox

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Crash configures the janitor's report of a panic of the supervisor. Go lets no
// goroutine of that process catch the panic of another one.
type Crash struct {
	// Output receives what Go's runtime writes about a panic.
	Output *os.File `json:"-"`
	// Stderr is the supervisor's standard error.
	Stderr *os.File `json:"-"`
	// Keep is the file for the stacks; without it, the janitor prints one.
	Keep string
	// Whose names the supervisor.
	Whose string
}

// stackBytes bounds the stack that is printed where none is kept.
const stackBytes = 4 << 10

// reportCrash tells the user what Go's runtime wrote before the supervisor ended.
// It does nothing if that was no panic.
func reportCrash(said io.ReaderAt, stderr io.Writer, keep, whose string) error {
	text, err := io.ReadAll(io.NewSectionReader(said, 0, 16<<20))
	if err != nil {
		return fmt.Errorf("read what the supervisor said at its end: %w", err)
	}
	reason, stack, found := bytes.Cut(text, []byte("\ngoroutine "))
	if !found {
		return nil
	}
	reason, _, _ = bytes.Cut(bytes.TrimSpace(reason), []byte("\n"))
	report := "keep what follows, and report it"
	if keep != "" {
		if err = os.WriteFile(keep, text, 0o600); err == nil {
			report, stack = "report it with "+keep, nil
		}
	}
	fmt.Fprintf(stderr, "berth: %s has crashed (%s), and the cluster has ended with it: the workload's result and its output that is not printed above are lost; %s\n",
		whose, reason, report)
	stack, _, _ = bytes.Cut(stack, []byte("\n\n"))
	if len(stack) > 0 {
		stack = append([]byte("goroutine "), stack[:min(len(stack), stackBytes)]...)
	}
	for line := range strings.Lines(string(stack)) {
		fmt.Fprintf(stderr, "berth:   %s\n", strings.TrimRight(line, "\n"))
	}
	return err
}

// watch keeps the janitor's descriptors from other processes, and returns
// reportCrash for them.
func (c *Crash) watch() func() {
	if c == nil {
		return func() {}
	}
	unix.CloseOnExec(crashFD)
	unix.CloseOnExec(stderrFD)
	said, stderr := os.NewFile(crashFD, "crash"), os.NewFile(stderrFD, "stderr")
	return func() {
		if err := reportCrash(said, stderr, c.Keep, c.Whose); err != nil {
			fmt.Fprintln(os.Stderr, "janitor:", err)
		}
		stderr.Close()
	}
}
