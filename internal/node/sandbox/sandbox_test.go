package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// TestMain lets the test program be the janitor.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == JanitorArg {
		os.Exit(Janitor())
	}
	os.Exit(m.Run())
}

// A program that is missing or damaged is not taken for a host without user namespaces.
func TestProgramOfJanitorIsBlamed(t *testing.T) {
	dir := t.TempDir()
	damaged, whole := filepath.Join(dir, "damaged"), filepath.Join(dir, "whole")
	for path, mode := range map[string]os.FileMode{damaged: 0o600, whole: 0o700} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		program string
		err     error
		blamed  bool
	}{
		{filepath.Join(dir, "none"), unix.ENOENT, true},
		{whole, unix.ENOEXEC, true},
		{damaged, unix.EACCES, true},
		{whole, unix.EACCES, false}, // SELinux forbids user namespaces so
		{whole, unix.EPERM, false},
		{whole, unix.ENOSPC, false},
	} {
		got := explainStart(test.program, &os.PathError{Op: "fork/exec", Path: test.program, Err: test.err}).Error()
		if strings.Contains(got, "unpack the whole archive") != test.blamed || strings.Contains(got, "user namespace") == test.blamed {
			t.Errorf("%s of %s: %s", test.err, filepath.Base(test.program), got)
		}
	}
}

// If the janitor was killed, the program that the run began with removes the directories,
// although another one has its path.
func TestReplacedProgramIsNotExecuted(t *testing.T) {
	testutil.Require(t, testutil.UserNS)
	dir := t.TempDir()
	path, left := filepath.Join(dir, "berth-sandbox"), filepath.Join(dir, "left")
	self, err := os.ReadFile("/proc/self/exe")
	if err := errors.Join(err, os.WriteFile(path, self, 0o700), os.Mkdir(left, 0o700)); err != nil {
		t.Fatal(err)
	}
	program, err := os.OpenFile(path, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("#!/bin/false\n"), 0o700)); err != nil {
		t.Fatal(err)
	}
	control, end, err := linux.PacketPair("test")
	if err != nil {
		t.Fatal(err)
	}
	end.Close()
	lifeline, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	s := &Sandbox{control: control, lifeline: lifeline, gone: make(chan struct{}), program: program,
		janitor: exec.Command("/bin/false"), config: Config{Program: path, Remove: []string{left}}}
	if err := s.janitor.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
}
