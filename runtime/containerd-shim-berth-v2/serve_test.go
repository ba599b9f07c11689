package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"
)

// outlive makes the test program a process with a shim's signals, until the end of its
// standard input.
const outlive = "TEST_OUTLIVE"

func TestMain(m *testing.M) {
	if os.Getenv(outlive) != "" {
		outliveSignals()
		fmt.Println("ready")
		_, _ = io.ReadAll(os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The signals of a job reach its shims, too, and the pods need them to end in order.
func TestShimOutlivesSignalsOfItsJob(t *testing.T) {
	shim := exec.CommandContext(t.Context(), "/proc/self/exe")
	shim.Env = append(os.Environ(), outlive+"=yes")
	stdin, err := shim.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := shim.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shim.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || line != "ready\n" {
		t.Errorf("%q, %v", line, err)
	}
	for _, signal := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		if err := shim.Process.Signal(signal); err != nil {
			t.Errorf("%s: %v", signal, err)
		}
	}
	stdin.Close()
	if err := shim.Wait(); err != nil {
		t.Error(err)
	}
}

// A child may end before the goroutine that reaps has run for the first time.
func TestEndOfFirstChildIsKept(t *testing.T) {
	ended := catchChildren()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("no SIGCHLD of a child that ended before anybody read the channel")
	}
}
