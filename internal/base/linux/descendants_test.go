package linux

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestDescendants(t *testing.T) {
	// The shell's child lives until the pipe closes, as does the shell.
	command := exec.Command("/bin/sh", "-c", "cat & cat; wait")
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = command.Wait()
	})
	children, err := Children(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(children, command.Process.Pid) {
		t.Errorf("children %v lack %d", children, command.Process.Pid)
	}
	descendants, err := Descendants(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range children {
		if !slices.Contains(descendants, child) {
			t.Errorf("descendants %v lack child %d", descendants, child)
		}
	}
	if slices.Contains(descendants, os.Getpid()) || slices.Contains(descendants, os.Getppid()) {
		t.Errorf("descendants %v hold the process itself or its parent", descendants)
	}
}

func TestProcessState(t *testing.T) {
	if state := ProcessState(os.Getpid()); state != 'R' && state != 'S' {
		t.Errorf("own state is %q", state)
	}
	if state := ProcessState(1 << 30); state != 0 {
		t.Errorf("state of a process that does not exist is %q", state)
	}
}
