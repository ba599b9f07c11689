package main

import (
	"os/exec"
	"testing"
	"time"
)

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
